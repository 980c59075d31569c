#include "bench/sgd/sgd_replica.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace butterfly {
namespace {

/// Calls work(collectives) on one thread for each rank.
template <typename Work>
void on_ranks(int ranks, const Work& work) {
  auto members = make_inproc_collectives(ranks);
  std::vector<std::jthread> threads;
  for (auto& member : members) {
    threads.emplace_back([&work, &member] { work(*member); });
  }
}

TEST(SgdReplicaTest, RanksLearnAndKeepTheSameWeightsInEveryStep) {
  on_ranks(3, [](Collectives& rank) {
    const auto run = train_small_mlp(rank, {.steps = 300});
    ASSERT_TRUE(run) << run.error().message;
    EXPECT_EQ(run->checksums.size(), 300u);
    EXPECT_NE(run->checksums.front(), run->checksums.back());
    EXPECT_GT(run->first_loss, 2.0);
    EXPECT_LT(run->last_loss, 0.5);
    EXPECT_TRUE(check_replicas(rank, *run));
    EXPECT_TRUE(check_learned(*run));
  });
}

TEST(SgdReplicaTest, WeightsThatDifferInOneStepAreNamed) {
  on_ranks(3, [](Collectives& rank) {
    auto run = train_small_mlp(rank, {.steps = 20});
    ASSERT_TRUE(run);
    if (rank.rank() == 2) run->checksums[7] ^= 1;
    const Status status = check_replicas(rank, *run);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kBadData);
    EXPECT_NE(status.error().message.find("after step 7 "), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("of rank 2 "), std::string::npos) << status.error().message;
  });
}

TEST(SgdReplicaTest, LastWeightsThatDifferAreNamed) {
  on_ranks(2, [](Collectives& rank) {
    auto run = train_small_mlp(rank, {.steps = 5});
    ASSERT_TRUE(run);
    if (rank.rank() == 1) run->weights[0] += 1.0F;
    const Status status = check_replicas(rank, *run);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("at the end"), std::string::npos) << status.error().message;
  });
}

TEST(SgdReplicaTest, ARunWithoutUpdatesDoesNotCountAsLearned) {
  on_ranks(2, [](Collectives& rank) {
    const auto run = train_small_mlp(rank, {.steps = 100, .rate = 0.0F});
    ASSERT_TRUE(run);
    const Status status = check_learned(*run);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("nothing was learned"), std::string::npos);
  });
}

}  // namespace
}  // namespace butterfly
