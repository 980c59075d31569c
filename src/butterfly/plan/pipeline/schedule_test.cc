#include "butterfly/plan/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace butterfly {
namespace {

constexpr int kStagesMost = 8, kMicroBatchesMost = 16;

int count_of(const std::vector<StagePass>& works, StagePassKind kind) {
  return static_cast<int>(std::ranges::count(works, kind, &StagePass::kind));
}

template <typename Check>
void for_each_stage(const Check& check) {
  for (int stages = 1; stages <= kStagesMost; ++stages) {
    for (int micro_batches = 1; micro_batches <= kMicroBatchesMost; ++micro_batches) {
      for (int stage = 0; stage < stages; ++stage) check(stage, stages, micro_batches);
    }
  }
}

// Fails when a micro-batch is left out, done twice or out of order, or a backward pass precedes its forward pass.
TEST(PipelineSchedule, EachStageDoesEveryMicroBatchOnceAndInOrder) {
  for_each_stage([](int stage, int stages, int micro_batches) {
    const std::vector<StagePass> works = pipeline_schedule(stage, stages, micro_batches);
    const bool embeds = stages > 1 && stage == stages - 1;
    std::array<int, 4> next{};
    for (const StagePass& work : works) {
      EXPECT_EQ(work.micro_batch, next[static_cast<std::size_t>(work.kind)]++);
      EXPECT_LE(next[2], next[1]) << "a backward pass before its forward pass";
      EXPECT_LE(next[3], next[2]) << "gradients of an embedding before the head's";
    }
    EXPECT_EQ(count_of(works, StagePassKind::kForward), micro_batches);
    EXPECT_EQ(count_of(works, StagePassKind::kBackward), micro_batches);
    EXPECT_EQ(count_of(works, StagePassKind::kEmbed), embeds ? micro_batches : 0);
    EXPECT_EQ(count_of(works, StagePassKind::kEmbedBackward), embeds ? micro_batches : 0);
  });
}

// Fails when a stage keeps the activations of more micro-batches than it says, or of fewer than fill the pipeline.
TEST(PipelineSchedule, AStageKeepsOneMicroBatchMoreThanStagesBehindItNeedAndTheLastOneOne) {
  for_each_stage([](int stage, int stages, int micro_batches) {
    int kept = 0, most = 0;
    for (const StagePass& work : pipeline_schedule(stage, stages, micro_batches)) {
      if (work.kind == StagePassKind::kForward) most = std::max(most, ++kept);
      if (work.kind == StagePassKind::kBackward) --kept;
    }
    const int wanted = stage + 1 == stages ? 1 : stages - stage + kMicroBatchesAhead;
    EXPECT_EQ(most, std::min(micro_batches, wanted)) << stage << " of " << stages << ", " << micro_batches;
    EXPECT_EQ(most, kept_micro_batches(stage, stages, micro_batches));
  });
}

// Fails when more leaves of a tied embedding are open than places are made for, or embeddings run further ahead than
// the first stage keeps.
TEST(PipelineSchedule, TheLastStageIsAheadAndBehindByNoMoreThanTheFirstOneKeeps) {
  for_each_stage([](int stage, int stages, int micro_batches) {
    int embedded = 0, headed = 0, returned = 0;
    for (const StagePass& work : pipeline_schedule(stage, stages, micro_batches)) {
      embedded += work.kind == StagePassKind::kEmbed ? 1 : 0;
      headed += work.kind == StagePassKind::kBackward ? 1 : 0;
      returned += work.kind == StagePassKind::kEmbedBackward ? 1 : 0;
      if (stages == 1 || stage < stages - 1) continue;
      EXPECT_LE(headed - returned, kept_micro_batches(0, stages, micro_batches));
      EXPECT_LE(embedded - headed, kept_micro_batches(0, stages, micro_batches));
    }
  });
}

// Fails when a stage waits for what another one sends only after it has heard from the first: simulate_pipeline()
// checks that all come to their end.
TEST(PipelineSchedule, NobodyWaitsInACircleAndEqualStagesHaveTheBubbleOfTheFormula) {
  for (int stages = 1; stages <= kStagesMost; ++stages) {
    for (int micro_batches = 1; micro_batches <= kMicroBatchesMost; ++micro_batches) {
      const std::vector<StageTimes> times(static_cast<std::size_t>(stages), {.forward_s = 1.0, .backward_s = 2.0});
      const PipelineTimes found = simulate_pipeline(times, micro_batches);
      EXPECT_NEAR(found.bubble, (stages - 1.0) / (micro_batches + stages - 1.0), 1e-12)
          << stages << ", " << micro_batches;
      EXPECT_NEAR(found.step_s, 3.0 * (micro_batches + stages - 1), 1e-9);
    }
  }
}

TEST(PipelineSchedule, TheSlowestStageSetsThePaceAndLinksDelayIt) {
  const std::vector<StageTimes> even{{1.0, 2.0}, {1.0, 2.0}}, uneven{{1.0, 2.0}, {2.0, 4.0}};
  const PipelineTimes slow = simulate_pipeline(uneven, 8);
  EXPECT_NEAR(slow.step_s, 1.0 + 8 * 6.0 + 2.0, 1e-9);
  EXPECT_NEAR(slow.waits_s[0], slow.step_s - 8 * 3.0, 1e-9);
  const std::vector<StageTimes> linked{{1.0, 2.0, 0.25}, {1.0, 2.0, 0.25}};
  EXPECT_GT(simulate_pipeline(linked, 8).step_s, simulate_pipeline(even, 8).step_s);
}

// Fails when stages wait for a link with every micro-batch, as they do with kMicroBatchesAhead = 0.
TEST(PipelineSchedule, WhatIsAheadHidesALink) {
  const std::vector<StageTimes> linked{{1.0, 2.0, 0.25}, {1.0, 2.0, 0.25}};
  constexpr int kMicroBatches = 16;
  // Filling and draining pay for the link, and nothing between.
  EXPECT_LE(simulate_pipeline(linked, kMicroBatches).step_s, 3.0 * (kMicroBatches + 1) + 4 * 0.25 + 1e-9);
}

TEST(PipelineSchedule, AnEvaluationEmbedsAheadByTheStagesAtMost) {
  for_each_stage([](int stage, int stages, int micro_batches) {
    int embedded = 0, forward = 0;
    for (const StagePass& work : forward_schedule(stage, stages, micro_batches)) {
      embedded += work.kind == StagePassKind::kEmbed ? 1 : 0;
      EXPECT_LE(embedded - forward, stages);
      if (work.kind != StagePassKind::kForward) continue;
      EXPECT_EQ(work.micro_batch, forward++);
    }
    EXPECT_EQ(forward, micro_batches);
    EXPECT_EQ(embedded, stages > 1 && stage == stages - 1 ? micro_batches : 0);
  });
}

}  // namespace
}  // namespace butterfly
