#include "butterfly/train/fit/fit_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr FitOpen kAllOpen{.strategy = true, .recompute = true};

RunConfig run_of(int ranks, int batch) {
  RunConfig config;
  config.model = "gpt2-124m";
  config.data.files = {"synthetic:markov"};
  config.parallel.ranks = ranks;
  config.global_batch = batch;
  return config;
}

/// Dividing takes time and saves memory, and so does recomputation; micro-batches take memory alone.
FitCosts made_up_costs() {
  return {.step_s = [](const FitChoice& choice) -> Result<double> {
            return 1.0 + 0.5 * static_cast<int>(choice.strategy) + 0.4 * static_cast<int>(choice.recompute);
          },
          .memory_bytes = [](const FitChoice& choice) -> Result<std::uint64_t> {
            const int state = 400 - 100 * static_cast<int>(choice.strategy);
            const int each = 30 - 10 * static_cast<int>(choice.recompute);
            return static_cast<std::uint64_t>(state + each * choice.micro_batch) * kMiB;
          }};
}

std::vector<FitTrial> trials_of(const RunConfig& config, std::uint64_t memory, Result<FitTrial>& found) {
  std::vector<FitTrial> tried;
  found = find_fit(fit_choices(config, kAllOpen), memory, made_up_costs(),
                   [&](const FitTrial& trial) { tried.push_back(trial); });
  return tried;
}

// Fails when a flag or a key of the file is overruled.
TEST(FitSearch, WhatIsGivenStays) {
  RunConfig config = run_of(4, 16);
  config.micro_batch = 2;
  config.recompute = Recompute::kSelective;
  config.parallel.strategy = ParallelStrategy::kHybrid;
  config.parallel.shard_group = 2;
  const auto only = fit_choices(config, {});
  ASSERT_EQ(only.size(), 1u);
  EXPECT_EQ(to_string(only[0]), "hybrid, micro-batch 2, recompute selective");
  for (const FitChoice& choice : fit_choices(config, {.recompute = true})) {
    EXPECT_EQ(choice.strategy, ParallelStrategy::kHybrid);
    EXPECT_EQ(choice.micro_batch, 2);
  }
  EXPECT_EQ(fit_choices(config, {.recompute = true}).size(), 3u);
  config.parallel.shard_group = 0;
  EXPECT_EQ(fit_choices(config, {.strategy = true}).size(), kPlannedStrategies.size());
}

TEST(FitSearch, OnlyWhatCanRunIsAChoice) {
  const auto sizes = [](const RunConfig& config) {
    std::set<int> all;
    for (const FitChoice& choice : fit_choices(config, kAllOpen)) all.insert(choice.micro_batch);
    return all;
  };
  // Every rank has a micro-batch, and they divide the step.
  EXPECT_THAT(sizes(run_of(4, 24)), ElementsAre(1, 2, 3, 4, 6));
  EXPECT_THAT(sizes(run_of(1, 64)), ElementsAre(1, 2, 4, 8));
  RunConfig same_bits = run_of(2, 64);
  same_bits.parallel.deterministic = true;
  EXPECT_THAT(sizes(same_bits), ElementsAre(1, 2, 4));
  // Nothing to divide among; nothing divided where gradients are packed.
  RunConfig packed = run_of(4, 8);
  packed.parallel.compression = GradientCompression::kFp16;
  for (const RunConfig& config : {run_of(1, 8), packed}) {
    for (const FitChoice& choice : fit_choices(config, kAllOpen)) EXPECT_EQ(choice.strategy, ParallelStrategy::kDdp);
  }
}

// Fails when a slower one is taken, or looked at before a faster one.
TEST(FitSearch, TheFastestThatFitsIsTakenAndThoseBeforeItWereTried) {
  Result<FitTrial> found = make_error(ErrorCode::kNotFound, "nothing was searched");
  const auto tried = trials_of(run_of(4, 16), 330 * kMiB, found);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(to_string(found->choice), "zero1, micro-batch 1, recompute none");
  EXPECT_EQ(found->memory_bytes, 330 * kMiB);
  EXPECT_TRUE(std::ranges::is_sorted(tried, {}, &FitTrial::step_s));
  for (const FitTrial& trial : tried) EXPECT_EQ(trial.fits, &trial == &tried.back());
  // With each micro-batch: ddp, ddp with selective recomputation, zero1; not ddp with recomputed blocks, which is
  // slower.
  EXPECT_EQ(tried.size(), 3u * 3);
}

TEST(FitSearch, OfEquallyFastOnesTheLargestMicroBatchIsTriedFirst) {
  Result<FitTrial> found = make_error(ErrorCode::kNotFound, "nothing was searched");
  trials_of(run_of(4, 16), 460 * kMiB, found);
  ASSERT_TRUE(found);
  EXPECT_EQ(to_string(found->choice), "ddp, micro-batch 2, recompute none");
}

TEST(FitSearch, WhereNothingFitsTheLeastIsNamed) {
  Result<FitTrial> found = make_error(ErrorCode::kNotFound, "nothing was searched");
  const auto tried = trials_of(run_of(4, 16), 100 * kMiB, found);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kNoMemory);
  EXPECT_THAT(found.error().message, AllOf(HasSubstr("100.0 MiB"), HasSubstr("110.0 MiB"),
                                           HasSubstr("zero3, micro-batch 1, recompute block")));
  EXPECT_EQ(tried.size(), 4u * 3 * 3 + 1 * 3);  // a pipeline's stages have four micro-batches each
}

TEST(FitSearch, AStrategyOfTheCostModelAndOfARunAreTheSameBothWays) {
  for (const TrainStrategy strategy : kTrainStrategies) EXPECT_EQ(planned_as(run_as(strategy)), strategy);
  EXPECT_EQ(planned_as(ParallelStrategy::kHybrid), TrainStrategy::kFullShard);
}

}  // namespace
}  // namespace butterfly
