#include "butterfly/plan/cost/training_choice.h"

#include <gtest/gtest.h>

#include <array>

namespace butterfly {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

using Candidates = std::array<TrainCandidate, 4>;  // of the first ones

Candidates candidates(std::array<double, 4> step_s, std::array<std::uint64_t, 4> missing) {
  Candidates all{};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = {.strategy = kTrainStrategies[i],
              .step_s = step_s[i],
              .memory_bytes = 100 * kMiB + missing[i],
              .available_bytes = 100 * kMiB,
              .missing_bytes = missing[i]};
  }
  return all;
}

TEST(TrainingChoice, TheSimplestStaysUnlessAnotherIsClearlyFaster) {
  EXPECT_EQ(choose_training(candidates({1.0, 0.91, 0.91, 1.2}, {})).strategy, TrainStrategy::kDdp);
  EXPECT_EQ(choose_training(candidates({1.0, 0.89, 0.85, 1.2}, {})).strategy, TrainStrategy::kZero1);
}

TEST(TrainingChoice, WhatDoesNotFitIsNamedWithItsMissingBytes) {
  const TrainChoice choice = choose_training(candidates({1.0, 1.0, 1.0, 1.5}, {8 * kMiB, 5 * kMiB, 3 * kMiB, 0}));
  EXPECT_EQ(choice.strategy, TrainStrategy::kFullShard);
  EXPECT_TRUE(choice.fits);
  EXPECT_NE(choice.reason.find("ddp lacks 8.0 MiB"), std::string::npos) << choice.reason;
  EXPECT_NE(choice.reason.find("100.0 MiB of 100.0 MiB"), std::string::npos) << choice.reason;
}

TEST(TrainingChoice, WhereNothingFitsTheOneThatLacksLeastIsNamed) {
  const TrainChoice choice =
      choose_training(candidates({1.0, 1.0, 1.0, 1.5}, {8 * kMiB, 6 * kMiB, 3 * kMiB, 5 * kMiB}));
  EXPECT_FALSE(choice.fits);
  EXPECT_EQ(choice.strategy, TrainStrategy::kShardGradOp);
  EXPECT_NE(choice.reason.find("3.0 MiB"), std::string::npos) << choice.reason;
}

// Fails when another rank than the fullest one is looked at, or a smaller node's missing bytes are lost.
TEST(TrainingChoice, TheFullestRankAndTheOneThatLacksMostAreWhatCounts) {
  PlanCluster cluster;
  cluster.nodes = {{.memory_bytes = 10}, {.memory_bytes = 1000}};
  TrainPrediction prediction;
  prediction.step_s = 2.0;
  prediction.nodes.resize(2);
  prediction.nodes[0].weight_bytes = 30;
  prediction.nodes[0].missing_bytes = 20;
  prediction.nodes[1].weight_bytes = 70;
  const TrainCandidate found = candidate(TrainStrategy::kShardGradOp, prediction, cluster);
  EXPECT_EQ(found.strategy, TrainStrategy::kShardGradOp);
  EXPECT_EQ(found.memory_bytes, 70u);
  EXPECT_EQ(found.available_bytes, 1000u);
  EXPECT_EQ(found.missing_bytes, 20u);
  EXPECT_EQ(found.step_s, 2.0);
}

}  // namespace
}  // namespace butterfly
