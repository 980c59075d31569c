#include "butterfly/plan/cost/micro_batch_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> counts(int total, int ranks, const std::vector<double>& speeds) {
  const auto shares = divide_micro_batches(total, ranks, speeds);
  EXPECT_TRUE(shares) << shares.error().message;
  std::vector<int> counts;
  int next = 0;
  for (const MicroBatches& share : *shares) {
    EXPECT_EQ(share.first, next);
    EXPECT_EQ(share.total, total);
    next = share.last;
    counts.push_back(share.last - share.first);
  }
  EXPECT_EQ(next, total);
  return counts;
}

TEST(Shares, AreEqualWithoutSpeeds) {
  EXPECT_THAT(counts(8, 4, {}), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts(8, 3, {}), ElementsAre(3, 3, 2));
  EXPECT_THAT(counts(5, 1, {}), ElementsAre(5));
}

TEST(Shares, FollowSpeedsByLargestRemainders) {
  EXPECT_THAT(counts(8, 2, {3, 1}), ElementsAre(6, 2));
  EXPECT_THAT(counts(10, 3, {1, 1, 2}), ElementsAre(3, 2, 5));  // 2.5 2.5 5
  EXPECT_THAT(counts(7, 3, {1.0, 2.0, 4.0}), ElementsAre(1, 2, 4));
  EXPECT_THAT(counts(10, 3, {0.14, 0.43, 0.43}), ElementsAre(2, 4, 4));  // 1.4 4.3 4.3
}

TEST(Shares, EveryRankHasOne) {
  EXPECT_THAT(counts(4, 3, {100, 1, 1}), ElementsAre(2, 1, 1));
  EXPECT_THAT(counts(3, 3, {1, 1000, 1000}), ElementsAre(1, 1, 1));
}

TEST(Shares, ImpossibleOnesAreRefusedWithBothNumbers) {
  const auto few = divide_micro_batches(3, 4, {});
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().message, HasSubstr("3 micro-batches cannot be divided among 4 ranks"));
  const auto other = divide_micro_batches(8, 3, std::vector<double>{1, 1});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("speeds of 2 ranks for a run of 3"));
  for (const double bad :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto refused = divide_micro_batches(8, 2, std::vector<double>{1, bad});
    ASSERT_FALSE(refused) << bad;
    EXPECT_THAT(refused.error().message, HasSubstr("rank 1 has speed"));
  }
}

TEST(Shares, RoundsNumberMicroBatchesAlongTheRanks) {
  const auto shares = divide_micro_batches(6, 3, std::vector<double>{3, 1, 2}).value();
  ASSERT_EQ(rounds_of(shares, {}), 3);
  using Pass = PassMicroBatches;
  EXPECT_THAT(micro_batches_in_rounds(shares, 0, 3), ElementsAre(Pass{0, 1}, Pass{1, 1}, Pass{3, 1}));
  EXPECT_THAT(micro_batches_in_rounds(shares, 1, 3), ElementsAre(Pass{}, Pass{}, Pass{4, 1}));
  EXPECT_THAT(micro_batches_in_rounds(shares, 2, 3), ElementsAre(Pass{}, Pass{2, 1}, Pass{5, 1}));
  EXPECT_THAT(micro_batches_in_order(shares[2], 1), ElementsAre(Pass{4, 1}, Pass{5, 1}));
}

TEST(Shares, OfARankAloneAreEvenPasses) {
  using Pass = PassMicroBatches;
  EXPECT_THAT(micro_batches_in_order({.first = 3, .last = 12, .total = 12}, 4),
              ElementsAre(Pass{3, 3}, Pass{6, 3}, Pass{9, 3}));
  EXPECT_THAT(micro_batches_in_order({.first = 0, .last = 7, .total = 12}, 4), ElementsAre(Pass{0, 4}, Pass{4, 3}));
  EXPECT_EQ((Pass{4, 3}.last()), 6);
  EXPECT_EQ(Pass{}.last(), kIdle);
}

// Fails when shares of a step of few micro-batches cannot follow speeds, or ranks tell each other thousands of times.
TEST(Shares, AreOfPartsOfMicroBatchesWhereTheseAreFew) {
  EXPECT_EQ(shared_micro_batch(32, 4), 1);
  EXPECT_EQ(shared_micro_batch(256, 4), 2);
  EXPECT_EQ(shared_micro_batch(4096, 4), 4);
  EXPECT_EQ(shared_micro_batch(360, 15), 3);
  EXPECT_EQ(shared_micro_batch(8, 1), 1);
}

// Fails when a fast rank goes through more rounds than a slow one has micro-batches, or keeps more of them than
// allowed.
TEST(Shares, AFastRankComputesSeveralMicroBatchesInOnePass) {
  const auto rounds = [](int total, const std::vector<double>& speeds) {
    return rounds_of(divide_micro_batches(total, static_cast<int>(speeds.size()), speeds).value(), {1, 4});
  };
  EXPECT_EQ(rounds(16, {3, 1}), 4);
  EXPECT_EQ(rounds(16, {1, 1}), 8);
  EXPECT_EQ(rounds(11, {6, 5}), 6) << "nearly as fast: no rank needs twice the memory";
  EXPECT_EQ(rounds(16, {15, 1}), 4) << "15 in one pass would take 15 times the memory";
  const auto shares = divide_micro_batches(16, 2, std::vector<double>{11, 5}).value();
  ASSERT_EQ(rounds_of(shares, {1, 4}), 6);
  int next = 0;
  std::vector<PassMicroBatches> fast = micro_batches_in_rounds(shares, 0, 6);
  const std::vector<PassMicroBatches> slow = micro_batches_in_rounds(shares, 1, 6);
  for (std::size_t round = 0; round < 6; ++round) {
    EXPECT_EQ(fast[round].first, next);
    EXPECT_LE(fast[round].count, most_in_a_round(shares[0], 6));
    next += fast[round].count + slow[round].count;
    EXPECT_LE(slow[round].count, 1);
  }
  EXPECT_EQ(next, 16);
}

// Fails when a pass has other than the time of others in its round, or a slow rank computes more than a pass at once.
TEST(Shares, OfSeveralMicroBatchesInAPassTakeTheSamePartOfEachRound) {
  constexpr PassSize kSize{.usual = 4, .most = 16};
  const auto shares = divide_micro_batches(32, 2, std::vector<double>{3.4, 1}).value();
  ASSERT_EQ(shares[0].last, 25);
  ASSERT_EQ(rounds_of(shares, kSize), 2);
  using Pass = PassMicroBatches;
  EXPECT_THAT(micro_batches_in_rounds(shares, 0, 2), ElementsAre(Pass{0, 12}, Pass{15, 13}));
  EXPECT_THAT(micro_batches_in_rounds(shares, 1, 2), ElementsAre(Pass{12, 3}, Pass{28, 4}));
  const auto near = divide_micro_batches(50, 2, std::vector<double>{36, 14}).value();
  EXPECT_EQ(rounds_of(near, kSize), 4) << "14 in three rounds would be five in one of them";
}

// Fails when a slow rank's micro-batches come one after the other: each would be waited for by a single one of others.
TEST(Shares, ASlowRankHasTheTimeOfSeveralRoundsForEachMicroBatch) {
  const auto shares = divide_micro_batches(16, 2, std::vector<double>{3, 1}).value();
  const std::vector<PassMicroBatches> slow = micro_batches_in_rounds(shares, 1, rounds_of(shares, {}));
  ASSERT_EQ(slow.size(), 12U);
  for (std::size_t round = 0; round < slow.size(); ++round) EXPECT_EQ(slow[round].count, round % 3 == 2) << round;
}

}  // namespace
}  // namespace butterfly
