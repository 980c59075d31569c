#include "butterfly/cluster/membership/phi_accrual.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

using std::chrono::milliseconds;

PhiAccrual::Clock::time_point at(int ms) {
  return PhiAccrual::Clock::time_point(std::chrono::hours(1)) + milliseconds(ms);
}

TEST(PhiAccrual, KnowsNothingBeforeTheFirstHeartbeat) {
  const PhiAccrual detector(milliseconds(100));
  EXPECT_EQ(detector.phi(at(1'000'000)), 0);
}

TEST(PhiAccrual, GrowsWithTheSilenceAndFallsWithAHeartbeat) {
  PhiAccrual detector(milliseconds(100));
  for (int i = 0; i <= 50; ++i) detector.heard(at(100 * i));
  EXPECT_LT(detector.phi(at(5050)), 1);
  double before = 0;
  for (int silence = 50; silence <= 1500; silence += 50) {
    const double now = detector.phi(at(5000 + silence));
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_GT(before, PhiAccrual::kSuspicious);
  detector.heard(at(6500));
  EXPECT_LT(detector.phi(at(6550)), 1);
}

TEST(PhiAccrual, AnIrregularPeerIsSuspectedLaterThanARegularOne) {
  PhiAccrual regular(milliseconds(100));
  PhiAccrual irregular(milliseconds(100));
  for (int i = 0; i <= 60; ++i) {
    regular.heard(at(100 * i));
    irregular.heard(at(100 * i + (i % 3 == 0 ? 180 : 0)));
  }
  irregular.heard(at(6181));
  regular.heard(at(6181));
  EXPECT_GT(regular.phi(at(6181 + 500)), 2 * irregular.phi(at(6181 + 500)));
}

TEST(PhiAccrual, IsTheNormalTailOfItsFormula) {
  // Mean 100 ms and the least deviation of 50 ms: 200 ms are two deviations late, P(later) = 0.02275.
  PhiAccrual detector(milliseconds(100));
  for (int i = 0; i <= 10; ++i) detector.heard(at(100 * i));
  EXPECT_NEAR(detector.phi(at(1000 + 200)), 1.643, 0.001);
}

}  // namespace
}  // namespace butterfly
