#include "butterfly/infer/scheduler/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "butterfly/kernel/inference/kernels.h"

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

/// All steps that can be submitted now, each completed at once.
std::vector<Step> run_all(Schedule& schedule) {
  std::vector<Step> steps;
  while (auto step = schedule.next_step().value()) {
    schedule.completed(*step);
    steps.push_back(std::move(*step));
  }
  return steps;
}

std::vector<TokenId> tokens_from(int first, int count) {
  std::vector<TokenId> result;
  for (int i = 0; i < count; ++i) result.emplace_back(first + i);
  return result;
}

constexpr int kPage = kKvPageTokens;

TEST(Schedule, WhatEndedStaysForTextsThatBeginAlike) {
  Schedule schedule({.rows_max = 8 * kPage, .depth = 1, .keep = true});
  const SequenceId first = schedule.add(tokens(2 * kPage + 3));
  run_all(schedule);
  schedule.finish(first);
  EXPECT_TRUE(schedule.idle()) << "nothing is released";
  std::vector<TokenId> alike = tokens(2 * kPage + 10);
  alike[static_cast<std::size_t>(kPage + 1)] = TokenId(9999);  // from the second page on another text
  const SequenceId second = schedule.add(alike);
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  ASSERT_EQ(step->share.size(), 1u);
  EXPECT_EQ(step->share[0].from, first);
  EXPECT_EQ(step->share[0].to, second);
  EXPECT_EQ(step->share[0].tokens, kPage);
  EXPECT_EQ(step->batch.runs[0].position, kPage);
  EXPECT_EQ(schedule.cached_tokens(second), kPage);
}

TEST(Schedule, TheLastTokenIsComputedThoughAllAreCached) {
  Schedule schedule({.rows_max = 8 * kPage, .depth = 1, .keep = true});
  schedule.finish([&] {
    const SequenceId id = schedule.add(tokens(2 * kPage));
    run_all(schedule);
    return id;
  }());
  schedule.add(tokens(2 * kPage));
  EXPECT_EQ(schedule.next_step().value()->batch.runs[0].position, kPage);
}

TEST(Schedule, WhatWasCachedIsLostWithTheNodes) {
  Schedule schedule({.rows_max = 8 * kPage, .depth = 1, .keep = true});
  const SequenceId first = schedule.add(tokens(2 * kPage));
  run_all(schedule);
  schedule.finish(first);
  schedule.replay(1);
  schedule.add(tokens(2 * kPage));
  const auto step = schedule.next_step().value();
  EXPECT_EQ(step->batch.runs[0].position, 0);
  EXPECT_TRUE(step->share.empty());
}

TEST(Schedule, TextsThatBeginAlikeWaitForTheFirstOfThem) {
  Schedule schedule({.rows_max = kPage, .depth = 1});
  const SequenceId first = schedule.add(tokens(2 * kPage + 1));
  const SequenceId second = schedule.add(tokens(2 * kPage + 1));
  const std::vector<Step> steps = run_all(schedule);
  std::int64_t rows = 0;
  for (const Step& step : steps) rows += step.batch.rows();
  EXPECT_EQ(rows, 2 * kPage + 2) << "the pages once, and a last token each";
  EXPECT_EQ(schedule.cached_tokens(first), 0);
  EXPECT_EQ(schedule.cached_tokens(second), 2 * kPage);
}

TEST(Schedule, NeitherGoesOnWhereTheFirstOfThoseAlikeEndsEarly) {
  Schedule schedule({.rows_max = kPage, .depth = 1});
  const SequenceId first = schedule.add(tokens(3 * kPage + 1));
  const SequenceId second = schedule.add(tokens(3 * kPage + 1));
  ASSERT_TRUE(schedule.next_step().value());
  schedule.finish(first);  // cancelled
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->batch.runs[0].sequence, second);
  EXPECT_EQ(step->batch.runs[0].position, 0) << "what is released cannot be shared";
  EXPECT_EQ(step->release, std::vector{first});
}

TEST(Schedule, KeptPagesMakeRoomTheOldestFirst) {
  Schedule schedule({.rows_max = 8 * kPage, .depth = 1, .pages_max = 4, .keep = true});
  std::vector<SequenceId> kept;
  for (int i = 0; i < 2; ++i) {
    kept.push_back(schedule.add(tokens_from(1000 * i, 2 * kPage)));
    run_all(schedule);
    schedule.finish(kept.back());
  }
  EXPECT_EQ(schedule.pages_used(), 4);
  EXPECT_EQ(schedule.pages_kept(), 4);
  EXPECT_TRUE(schedule.has_room(3 * kPage));
  EXPECT_FALSE(schedule.has_room(4 * kPage));
  schedule.add(tokens_from(5000, 2 * kPage));
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->release, std::vector{kept[0]});
  EXPECT_EQ(schedule.pages_used(), 4);
}

TEST(Schedule, TheYoungestGivesWayWherePagesAreShortAndBeginsAnew) {
  Schedule schedule({.rows_max = 8 * kPage, .depth = 1, .pages_max = 3});
  const SequenceId old = schedule.add(tokens_from(0, kPage));
  const SequenceId young = schedule.add(tokens_from(1000, kPage));
  run_all(schedule);
  for (int i = 0; i < kPage + 1; ++i) {
    schedule.append(old, TokenId(7));
    schedule.append(young, TokenId(8));
    run_all(schedule);
  }
  EXPECT_EQ(schedule.preempted(), 1u);
  EXPECT_LE(schedule.pages_used(), 3);
  EXPECT_FALSE(schedule.has_room(1)) << "who was there before goes first";
  EXPECT_EQ(schedule.tokens(old).size(), static_cast<std::size_t>(2 * kPage + 1));
  schedule.finish(old);
  const std::vector<Step> steps = run_all(schedule);
  std::int64_t rows = 0;
  for (const Step& step : steps) {
    for (const SequenceRun& run : step.batch.runs) rows += run.sequence == young ? run.rows : 0;
  }
  EXPECT_EQ(rows, static_cast<std::int64_t>(schedule.tokens(young).size()));
}

TEST(Schedule, PromptsAreCutSoThatTextsAreNotSlowedDownMuch) {
  Schedule schedule({.rows_max = 256, .depth = 1, .slowdown_max = 1.5});
  const SequenceId text = schedule.add(tokens_from(0, 3));
  const auto complete = [&](const Step& step) {  // 10 ms for a step, 1 ms more for each token of a prompt
    const double rows = static_cast<double>(step.batch.rows());
    schedule.completed(step, step.batch.runs[0].position == 0 ? rows * 1e-3 : (9 + rows) * 1e-3);
  };
  for (int i = 0; i < 3; ++i) {
    const auto step = schedule.next_step().value();
    ASSERT_TRUE(step);
    complete(*step);
    schedule.append(text, TokenId(1));
  }
  schedule.add(tokens_from(1000, 200));
  for (int i = 0; i < 20; ++i) {
    const auto step = schedule.next_step().value();
    ASSERT_TRUE(step);
    EXPECT_EQ(step->batch.runs[0].sequence, text);
    EXPECT_FALSE(schedule.next_step().value()) << "prompts alone would stand in the way";
    complete(*step);
    schedule.append(text, TokenId(1));
    if (i > 5) {
      EXPECT_GE(step->batch.rows(), 4) << i;
      EXPECT_LE(step->batch.rows(), 7) << i;
    }
  }
}

// Fails when a prompt that fits into one step leaves all stages but one without work.
TEST(Schedule, APromptIsCutSoThatEveryStageHasAPartOfIt) {
  for (const auto& [depth, steps] : std::map<int, std::size_t>{{1, 1}, {2, 11}, {4, 11}}) {
    Schedule schedule({.rows_max = 512, .depth = depth});
    schedule.add(tokens(512));
    EXPECT_EQ(run_all(schedule).size(), steps);
  }
}

// Fails when steps become shorter towards the end, which costs and gains nothing, or are not of whole tiles.
TEST(Schedule, StepsOfPromptsAreOfOneLength) {
  Schedule schedule({.rows_max = 512, .depth = 2});
  for (int i = 0; i < 8; ++i) schedule.add(tokens_from(1000 * i, 256));
  const std::vector<Step> steps = run_all(schedule);
  ASSERT_EQ(steps.size(), 22u);
  for (std::size_t i = 0; i + 2 < steps.size(); ++i) EXPECT_EQ(steps[i].batch.rows(), 96) << i;
}

// Fails when rows of texts come on top of whole tiles, or when many texts leave none to prompts.
TEST(Schedule, TextsAndPromptsFillWholeTilesTogether) {
  for (const auto& [texts, length, rows] : {std::tuple(4, kPage, 48), std::tuple(60, 2, 80)}) {
    Schedule schedule({.rows_max = 80, .depth = 2});
    std::vector<SequenceId> writing;
    for (int i = 0; i < texts; ++i) writing.push_back(schedule.add({TokenId(7 + i)}));
    while (const auto step = schedule.next_step().value()) schedule.completed(*step);
    for (const SequenceId text : writing) schedule.append(text, TokenId(1));
    for (int i = 0; i < 3 * texts; ++i) schedule.add(tokens_from(1000 * i, length));
    EXPECT_EQ(schedule.next_step().value()->batch.rows(), rows) << texts;
  }
}

/// Steps of one text without guesses, so that their time is known.
void measure(Schedule& schedule, SequenceId text) {
  for (int i = 0; i < 4; ++i) {
    const auto step = schedule.next_step().value();
    ASSERT_TRUE(step);
    schedule.completed(*step, 1e-3);
    schedule.append(text, TokenId(1));
  }
}

TEST(Schedule, GuessesAreComputedBehindTheNewestTokenAndWrongOnesAgain) {
  Schedule schedule({.rows_max = 64, .depth = 1});
  const SequenceId text = schedule.add(tokens(3));
  measure(schedule, text);
  schedule.propose(text, {TokenId(5), TokenId(6), TokenId(7)});
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->batch.runs[0].position, 6);
  EXPECT_EQ(step->batch.runs[0].rows, 4);
  EXPECT_EQ(step->batch.logit_rows(), 4);
  schedule.completed(*step, 1e-3);
  EXPECT_TRUE(schedule.append(text, TokenId(5)));
  EXPECT_FALSE(schedule.append(text, TokenId(9))) << "6 was guessed";
  const auto next = schedule.next_step().value();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->batch.runs[0].position, 8);
  EXPECT_EQ(next->batch.runs[0].rows, 1);
  EXPECT_EQ(next->tensor.view().values<std::int32_t>()[0], 9);
  EXPECT_EQ(schedule.drafted(), 3u);
  EXPECT_EQ(schedule.accepted(), 1u);
}

// Fails when guesses that nobody has looked at are kept as if the text had said them.
TEST(Schedule, WhatIsKeptOfATextEndsWithItsLastToken) {
  Schedule schedule({.rows_max = 4 * kPage, .depth = 1, .keep = true});
  const SequenceId text = schedule.add(tokens(2 * kPage - 6));
  measure(schedule, text);
  schedule.propose(text, std::vector(8, TokenId(0)));
  const auto step = schedule.next_step().value();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->batch.runs[0].rows, 4) << "to the end of the page and further";
  schedule.completed(*step, 1e-3);
  std::vector<TokenId> alike(schedule.tokens(text).begin(), schedule.tokens(text).end());
  schedule.finish(text);        // an end token was drawn
  alike.resize(2 * kPage + 4);  // as if more had been said
  schedule.add(alike);
  EXPECT_EQ(schedule.next_step().value()->batch.runs[0].position, kPage);
}

// Fails when a text that gave way while guesses of it were computed waits for them for ever.
TEST(Schedule, ATextThatGivesWayWithGuessesUnderWayGoesOn) {
  Schedule schedule({.rows_max = 2 * kPage, .depth = 2, .pages_max = 2});
  const SequenceId old = schedule.add(tokens_from(0, kPage - 4));
  schedule.completed(*schedule.next_step().value(), 1e-3);  // the first part of its prompt
  measure(schedule, old);
  const SequenceId young = schedule.add(tokens_from(1000, 3));
  auto newest = schedule.next_step().value();  // of the old one, which fills its page
  auto prompt = schedule.next_step().value();
  ASSERT_TRUE(newest && prompt);
  if (newest->batch.runs[0].sequence == young) std::swap(newest, prompt);
  schedule.completed(*prompt, 1e-3);
  schedule.append(young, TokenId(1));
  schedule.propose(young, {TokenId(5), TokenId(6)});
  const auto guessed = schedule.next_step().value();
  ASSERT_TRUE(guessed);
  ASSERT_EQ(guessed->batch.runs[0].sequence, young);
  ASSERT_EQ(guessed->batch.runs[0].rows, 3);
  schedule.completed(*newest, 1e-3);
  schedule.append(old, TokenId(1));
  const auto growing = schedule.next_step().value();  // needs a page more
  ASSERT_TRUE(growing);
  EXPECT_EQ(schedule.preempted(), 1u);
  schedule.completed(*guessed, 1e-3);
  EXPECT_TRUE(schedule.append(young, TokenId(5)));
  EXPECT_FALSE(schedule.append(young, TokenId(8)));
  schedule.completed(*growing, 1e-3);
  schedule.finish(old);
  std::int64_t rows = 0;
  for (const Step& step : run_all(schedule)) {
    for (const SequenceRun& run : step.batch.runs) rows += run.sequence == young ? run.rows : 0;
  }
  EXPECT_EQ(rows, 6) << "from its first token on";
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
