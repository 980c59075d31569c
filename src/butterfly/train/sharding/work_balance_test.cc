#include "butterfly/train/sharding/work_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace butterfly {
namespace {

using testing::ElementsAre;

std::vector<int> counts_of(const WorkBalance& balance) {
  std::vector<int> counts;
  for (const MicroBatches& share : balance.shares()) counts.push_back(share.last - share.first);
  return counts;
}

/// A step in which a micro-batch takes each rank so long; whether the shares change.
bool step(WorkBalance& balance, const std::vector<double>& seconds) {
  std::vector<double> pass_s;
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    pass_s.insert(pass_s.end(), static_cast<std::size_t>(counts_of(balance)[rank]), seconds[rank]);
  }
  return balance.observe(pass_s);
}

TEST(WorkBalance, ASlowRankGetsLess) {
  WorkBalance balance(divide_micro_batches(16, 2, {}).value());
  EXPECT_FALSE(step(balance, {9.0, 1.0})) << "the first step does not count";
  EXPECT_FALSE(step(balance, {1.0, 3.0}));
  EXPECT_TRUE(step(balance, {1.0, 3.0}));
  EXPECT_THAT(counts_of(balance), ElementsAre(12, 4));
  EXPECT_EQ(balance.shares()[1].first, 12);
  EXPECT_EQ(balance.shares()[1].last, 16);
  EXPECT_THAT(balance.seconds(), ElementsAre(1.0, 3.0));
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(step(balance, {1.0, 3.0})) << "it is even now";
  bool changed = false;
  for (int i = 0; i < 20; ++i) changed = step(balance, {1.0, 1.0}) || changed;
  EXPECT_TRUE(changed) << "the slow rank is fast again";
  EXPECT_THAT(counts_of(balance), ElementsAre(8, 8));
}

TEST(WorkBalance, LittleIsNotWorthAChange) {
  WorkBalance balance(divide_micro_batches(16, 2, {}).value());
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(step(balance, {1.0, 1.1}));
  WorkBalance coarse(divide_micro_batches(2, 2, {}).value());
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(step(coarse, {1.0, 5.0})) << "each rank has one";
  WorkBalance quick(divide_micro_batches(16, 2, {}).value());
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(step(quick, {1e-3, 5e-3})) << "40 ms a step";
}

TEST(WorkBalance, ATwentiethIsWorthAChangeOnceMoreStepsHaveShownIt) {
  WorkBalance balance(divide_micro_batches(100, 2, {}).value());
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(step(balance, {1.0, 1.15})) << i;
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(step(balance, {1.0, 1.15})) << i;
  EXPECT_TRUE(step(balance, {1.0, 1.15}));
  EXPECT_THAT(counts_of(balance), ElementsAre(54, 46));
}

TEST(WorkBalance, CountsMakeTheSlowestAsFastAsPossible) {
  EXPECT_THAT(balanced_counts(7, std::vector{1.0, 2.0, 4.0}), ElementsAre(4, 2, 1));
  EXPECT_THAT(balanced_counts(3, std::vector{1.0, 100.0, 1.0}), ElementsAre(1, 1, 1));
  EXPECT_THAT(balanced_counts(10, std::vector{1.0, 1.0}), ElementsAre(5, 5));
  EXPECT_THAT(balanced_counts(4, std::vector{0.0, 1.0}), ElementsAre(3, 1)) << "no time was seen";
}

}  // namespace
}  // namespace butterfly
