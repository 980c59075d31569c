#include "butterfly/train/sharding/takeover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <thread>

#include "butterfly/base/sanitized_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

class Takeovers : public ::testing::Test {
 protected:
  ShardMap map(int ranks, int mirrors, int group = 0) const {
    return ShardMap(transformer_->parameters(), transformer_->units(),
                    {.ranks = ranks, .group = group == 0 ? ranks : group, .mirrors = mirrors, .bucket_bytes = 1 << 18});
  }
  std::size_t elements() const { return transformer_->parameters().weights().size(); }

  /// Ranks that hold what the old map gave them, and zero elsewhere, move it; each then has what the new map wants.
  void expect_moved(const ShardMap& before, const std::vector<int>& old_ranks, const ShardMap& after) const {
    const auto moves = plan_takeover(before, old_ranks, after);
    ASSERT_TRUE(moves) << moves.error().message;
    const auto collectives = make_inproc_collectives(after.ranks());
    std::vector<std::vector<float>> arrays(old_ranks.size(), std::vector<float>(elements(), 0.0F));
    for (std::size_t rank = 0; rank < old_ranks.size(); ++rank) {
      for (const ParameterRange& range : before.held(old_ranks[rank])) {
        std::iota(arrays[rank].begin() + range.begin, arrays[rank].begin() + range.end,
                  static_cast<float>(range.begin));
      }
    }
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < old_ranks.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { EXPECT_TRUE(move_state(*collectives[rank], *moves, {std::span(arrays[rank])})); });
    }
    threads.clear();
    for (std::size_t rank = 0; rank < old_ranks.size(); ++rank) {
      for (const ParameterRange& range : after.held(static_cast<int>(rank))) {
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          ASSERT_EQ(arrays[rank][static_cast<std::size_t>(i)], static_cast<float>(i)) << "rank " << rank;
        }
      }
    }
  }

  std::unique_ptr<TrainableTransformer> transformer_ =
      TrainableTransformer::create(*named_config("tinytransformer-tiny"), {.micro_batch = 1, .seq = 8}).value();
};

TEST_F(Takeovers, AnyOneMayBeLost) {
  for (int lost = 0; lost < 4; lost += kThreadsWatched ? 3 : 1) {
    std::vector<int> left;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank != lost) left.push_back(rank);
    }
    expect_moved(map(4, 1), left, map(3, 1));
  }
}

TEST_F(Takeovers, TwoThatAreNoNeighboursMayBeLostAndTheLastIsLeftWithAll) {
  expect_moved(map(4, 1), {0, 2}, map(2, 1));
  expect_moved(map(2, 1), {1}, map(1, 1));
  expect_moved(map(5, 2), {0, 3}, map(2, 2));
}

TEST_F(Takeovers, GroupsAreCopiesOfEachOther) {
  expect_moved(map(4, 0, 2), {1, 2}, map(2, 0));
  expect_moved(map(4, 0, 2), {2, 3}, map(2, 0));
}

TEST_F(Takeovers, WhatNobodyHoldsIsNamed) {
  const auto refused = plan_takeover(map(4, 1), {0, 3}, map(2, 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(refused.error().message, HasSubstr("rank 1 is gone"));
  EXPECT_FALSE(plan_takeover(map(2, 0), {0}, map(1, 0)));
}

TEST_F(Takeovers, NothingMovesThatIsThere) {
  const auto moves = plan_takeover(map(2, 1), {0}, map(1, 1));
  ASSERT_TRUE(moves);
  EXPECT_TRUE(moves->empty());
}

}  // namespace
}  // namespace butterfly
