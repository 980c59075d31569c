#include "butterfly/train/gradients/guard.h"

#include <gtest/gtest.h>

#include <limits>

namespace butterfly {
namespace {

constexpr GuardConfig kGuard{.loss_sigmas = 3.0, .gradient_sigmas = 3.0, .window_steps = 8};

/// A guard that has seen `steps` quiet steps.
OutlierGuard after(int steps, const GuardConfig& config = kGuard) {
  OutlierGuard guard(config);
  for (int i = 0; i < steps; ++i) EXPECT_FALSE(guard.is_outlier(2.0 + 0.01 * (i % 3), 1.0 + 0.01 * (i % 2)));
  return guard;
}

TEST(OutlierGuard, LeavesOutALossOrANormThatStandsOut) {
  EXPECT_TRUE(after(8).is_outlier(3.0, 1.0));
  EXPECT_TRUE(after(8).is_outlier(2.0, 5.0));
  EXPECT_FALSE(after(8).is_outlier(1.0, 0.1)) << "below the mean";
}

TEST(OutlierGuard, JudgesNothingBeforeItsWindowIsFull) {
  EXPECT_FALSE(after(7).is_outlier(100.0, 100.0));
}

TEST(OutlierGuard, IsOffAtZeroSigmas) {
  EXPECT_FALSE(after(20, {.window_steps = 8}).is_outlier(100.0, 100.0));
  EXPECT_TRUE(after(20, {.window_steps = 8}).state().empty());
}

TEST(OutlierGuard, AChangeThatLastsStopsBeingAnOutlier) {
  OutlierGuard guard = after(8);
  int left_out = 0;
  for (int i = 0; i < 8; ++i) left_out += guard.is_outlier(4.0 + 0.01 * (i % 2), 1.0) ? 1 : 0;
  EXPECT_GT(left_out, 0);
  EXPECT_FALSE(guard.is_outlier(4.0, 1.0));
}

TEST(OutlierGuard, GoesOnFromItsSavedWindow) {
  OutlierGuard guard = after(13);
  OutlierGuard other(kGuard);
  ASSERT_TRUE(other.set_state(guard.state()));
  EXPECT_EQ(other.state(), guard.state());
  EXPECT_EQ(other.state().size(), 16u);
  EXPECT_TRUE(other.is_outlier(3.0, 1.0));
}

TEST(OutlierGuard, RefusesAWindowThatIsNone) {
  OutlierGuard guard(kGuard);
  EXPECT_FALSE(guard.set_state(std::vector<double>(3, 1.0)));
  EXPECT_FALSE(guard.set_state(std::vector<double>(18, 1.0)));
  EXPECT_FALSE(guard.set_state(std::vector<double>(2, std::numeric_limits<double>::infinity())));
}

}  // namespace
}  // namespace butterfly
