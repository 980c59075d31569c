#include "butterfly/infer/request/batch_schedule.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

std::vector<TokenId> tokens(int count) {
  std::vector<TokenId> result;
  for (int i = 0; i < count; ++i) result.emplace_back(i);
  return result;
}

TEST(Schedule, CutsAPromptIntoChunksAndAsksForLogitsAtItsEndOnly) {
  Schedule schedule({.rows_max = 4, .depth = 4});
  const SequenceId id = schedule.add(tokens(10));
  std::vector<int> rows;
  std::vector<std::int64_t> logits;
  while (auto step = schedule.next_step().value()) {
    rows.push_back(step->batch.runs[0].rows);
    logits.push_back(step->batch.logit_rows());
    schedule.completed(*step);
  }
  EXPECT_EQ(rows, (std::vector{4, 4, 2}));
  EXPECT_EQ(logits, (std::vector<std::int64_t>{0, 0, 1}));
  schedule.append(id, TokenId(77));
  const auto decode = schedule.next_step().value();
  ASSERT_TRUE(decode);
  EXPECT_EQ(decode->batch.runs[0].position, 10);
  EXPECT_EQ(decode->tensor.view().values<std::int32_t>()[0], 77);
}

TEST(Schedule, WhatIsCachedIsNotSentAgainAndStaysCached) {
  Schedule schedule({.rows_max = 8, .depth = 1, .keep = true});
  const SequenceId id = schedule.add(tokens(5), 3);
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->batch.runs[0].position, 3);
  EXPECT_EQ(step->batch.runs[0].rows, 2);
  schedule.completed(*step);
  schedule.append(id, TokenId(7));
  EXPECT_EQ(schedule.submitted(id), 5u);
  schedule.finish(id);
  EXPECT_FALSE(schedule.next_step().value());  // nothing is released
  EXPECT_TRUE(schedule.idle());
}

TEST(Schedule, TheLastTokenIsComputedThoughAllAreCached) {
  Schedule schedule({.rows_max = 8, .depth = 1, .keep = true});
  schedule.add(tokens(5), 9);
  EXPECT_EQ(schedule.next_step().value()->batch.runs[0].position, 4);
}

TEST(Schedule, WhatWasCachedIsLostWithTheNodes) {
  Schedule schedule({.rows_max = 8, .depth = 1, .keep = true});
  schedule.add(tokens(5), 3);
  ASSERT_TRUE(schedule.next_step().value());
  schedule.replay(1);
  EXPECT_EQ(schedule.next_step().value()->batch.runs[0].position, 0);
}

TEST(Schedule, WaitsForLogitsBeforeItGoesOn) {
  Schedule schedule({.rows_max = 8, .depth = 2});
  schedule.add(tokens(3));
  ASSERT_TRUE(schedule.next_step().value());
  EXPECT_FALSE(schedule.next_step().value());
}

TEST(Schedule, KeepsEveryStageBusyWithItsOwnSequences) {
  Schedule schedule({.rows_max = 64, .depth = 2});
  for (int i = 0; i < 4; ++i) schedule.add(tokens(2));
  const auto first = schedule.next_step().value();
  const auto second = schedule.next_step().value();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->batch.runs.size(), 2u);
  EXPECT_EQ(second->batch.runs.size(), 2u);
  EXPECT_NE(first->batch.runs[0].sequence, second->batch.runs[0].sequence);
}

TEST(Schedule, AReplayBeginsEveryUnfinishedSequenceAnewWithWhatItHas) {
  Schedule schedule({.rows_max = 8, .depth = 3});
  const SequenceId done = schedule.add(tokens(2));
  const SequenceId going = schedule.add(tokens(3));
  while (auto step = schedule.next_step().value()) schedule.completed(*step);
  schedule.finish(done);
  schedule.append(going, TokenId(50));
  ASSERT_TRUE(schedule.next_step().value()) << "under way when the nodes die";
  schedule.replay(1);
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  ASSERT_EQ(step->batch.runs.size(), 1u);
  EXPECT_EQ(step->batch.runs[0].sequence, going);
  EXPECT_EQ(step->batch.runs[0].position, 0);
  EXPECT_EQ(step->batch.runs[0].rows, 4);
  EXPECT_EQ(step->batch.logit_rows(), 1) << "of the last token alone";
  EXPECT_TRUE(step->release.empty()) << "new nodes have nothing to release";
  schedule.completed(*step);
  schedule.finish(going);
  while (auto last = schedule.next_step().value()) schedule.completed(*last);
  EXPECT_TRUE(schedule.idle());
}

TEST(Schedule, NeverHasMoreStepsUnderWayThanStagesAndOne) {
  Schedule schedule({.rows_max = 1, .depth = 2});
  schedule.add(tokens(10));
  int steps = 0;
  while (schedule.next_step().value()) ++steps;
  EXPECT_EQ(steps, 3);
}

TEST(Schedule, ReleasesFinishedSequencesAndThenIsIdle) {
  Schedule schedule({.rows_max = 8, .depth = 1});
  const SequenceId id = schedule.add(tokens(1));
  schedule.completed(*schedule.next_step().value());
  schedule.finish(id);
  EXPECT_FALSE(schedule.idle());
  const auto last = schedule.next_step().value();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->release, std::vector{id});
  EXPECT_TRUE(last->batch.runs.empty());
  schedule.completed(*last);
  EXPECT_TRUE(schedule.idle());
  EXPECT_FALSE(schedule.next_step().value());
}

}  // namespace
}  // namespace butterfly
