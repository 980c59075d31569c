// Guesses change when tokens come, never which.
#include <gtest/gtest.h>

#include "butterfly/infer/scheduler/fake_pipeline_test.h"
#include "butterfly/infer/speculation/draft_budget.h"
#include "butterfly/infer/speculation/ngram_drafter.h"
#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

std::vector<TokenId> ids(std::initializer_list<int> values) {
  std::vector<TokenId> result;
  for (const int value : values) result.emplace_back(value);
  return result;
}

/// Knows the model, and is wrong at every `wrong`-th position.
class Oracle final : public Drafter {
 public:
  explicit Oracle(std::size_t wrong) : wrong_(wrong) {}

  Result<std::vector<TokenId>> propose(SequenceId sequence, std::span<const TokenId> tokens,
                                       std::size_t most) override {
    known.insert(sequence);
    std::vector<std::int32_t> text;
    for (const TokenId token : tokens) text.push_back(token.value);
    std::vector<TokenId> draft;
    while (draft.size() < most) {
      const std::int32_t right = FakePipeline::follows(text);
      text.push_back(text.size() % wrong_ == 0 ? (right + 1) % FakePipeline::kVocab : right);
      draft.emplace_back(text.back());
    }
    return draft;
  }

  void forget(SequenceId sequence) override { known.erase(sequence); }

  std::set<SequenceId> known;

 private:
  std::size_t wrong_;
};

using Speculation = SchedulerTest;

TEST_F(Speculation, TextsAreTheSameWhateverIsGuessed) {
  std::vector<Request> requests;
  for (int i = 0; i < 9; ++i) requests.push_back(request_of(i % 4, 10 + 60 * (i % 3), 20 + 40 * (i % 3)));
  requests[3].sampling = {.temperature = 1.5f, .seed = 3};
  for (const std::size_t wrong : {std::size_t{1}, std::size_t{3}, std::size_t{1'000'000}}) {
    for (const std::int64_t cache_tokens : {0, 512}) {
      for (const int fail_after : {-1, 7, 20}) {
        FakePipeline pipeline;
        pipeline.stages = fail_after == 7 ? 2 : 1;
        pipeline.step_time = std::chrono::microseconds(200);
        pipeline.fail_after(fail_after);
        const auto oracle = std::make_shared<Oracle>(wrong);
        Scheduler scheduler(pipeline, tokenizer_,
                            {.context = 100'000,
                             .rows_max = 100,
                             .sequences_max = 4,
                             .cache_tokens = cache_tokens,
                             .keep_prefixes = cache_tokens > 0,
                             .slowdown_max = 2,
                             .drafter = oracle});
        const auto texts = generate(scheduler, requests, {});
        ASSERT_TRUE(texts) << texts.error().message;
        std::int64_t guessed = 0;
        for (std::size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ((*texts)[i].tokens, alone(requests[i])) << i << " with every " << wrong << "th wrong";
          if (requests[i].sampling.temperature == 0) guessed += (*texts)[i].guessed_tokens;
        }
        EXPECT_TRUE(wrong > 1 || guessed == 0);
        EXPECT_TRUE(wrong < 1000 || guessed > 0);
        EXPECT_GE(scheduler.stats().drafted_tokens, scheduler.stats().accepted_tokens);
        EXPECT_TRUE(oracle->known.empty()) << "of texts that have ended nothing stays";
      }
    }
  }
}

TEST_F(Speculation, RightGuessesSaveSteps) {
  const Request request = request_of(1, 10, 320);
  FakePipeline pipeline;
  pipeline.step_time = std::chrono::milliseconds(1);
  Scheduler scheduler(pipeline, tokenizer_, {.context = 1000, .drafter = std::make_shared<Oracle>(1'000'000)});
  const auto texts = generate(scheduler, std::span(&request, 1), {}).value();
  EXPECT_EQ(texts[0].tokens, alone(request));
  EXPECT_LT(pipeline.steps, 200);
  EXPECT_EQ(scheduler.stats().accepted_tokens, static_cast<std::uint64_t>(texts[0].guessed_tokens));
}

// Fails when what ended keeps guessed tokens among its own for texts that begin alike.
TEST_F(Speculation, WhatIsKeptOfATextIsWhatItSaid) {
  FakePipeline pipeline;
  pipeline.step_time = std::chrono::microseconds(200);
  Scheduler scheduler(pipeline, tokenizer_,
                      {.context = 2048, .keep_prefixes = true, .drafter = std::make_shared<Oracle>(7)});
  Request request = request_of(1, 100, 50);
  for (int turn = 0; turn < 8; ++turn) {
    const auto answer = generate(scheduler, std::span(&request, 1), {}).value();
    EXPECT_EQ(answer[0].tokens, alone(request)) << turn;
    EXPECT_TRUE(turn == 0 || answer[0].cached_tokens > 0);
    request.prompt.insert(request.prompt.end(), answer[0].tokens.begin(), answer[0].tokens.end());
    for (int i = 0; i < 20; ++i) request.prompt.emplace_back(5 + i);
  }
}

TEST(NgramDrafter, GoesOnAsAfterTheLongestAndLastOccurrence) {
  NgramDrafter drafter;
  const SequenceId one(1);
  EXPECT_TRUE(drafter.propose(one, ids({1, 2, 3, 4}), 4).value().empty());
  EXPECT_EQ(drafter.propose(one, ids({1, 2, 3, 4, 9, 1, 2, 3}), 3).value(), ids({4, 9, 1}));
  EXPECT_EQ(drafter.propose(one, ids({1, 2, 3, 4, 9, 1, 2, 3, 5, 1, 2, 3}), 2).value(), ids({5, 1}));
  EXPECT_TRUE(drafter.propose(SequenceId(2), ids({1, 2, 3}), 3).value().empty()) << "another text";
  drafter.forget(one);
  EXPECT_TRUE(drafter.propose(one, ids({7, 1, 2, 3}), 3).value().empty());
}

TEST(NgramDrafter, ARunOfOneTokenGoesOn) {
  NgramDrafter drafter;
  EXPECT_EQ(drafter.propose(SequenceId(1), ids({6, 6, 6, 6, 6}), 8).value(), std::vector(8, TokenId(6)));
}

TEST(DraftBudget, WeighsTheTimeOfMoreRowsAgainstTheirChances) {
  DraftBudget budget;
  const std::vector<double> likely{0.9, 0.81, 0.73, 0.66};
  EXPECT_EQ(budget.rows(1, likely), 0) << "nothing was measured";
  const auto measure = [](DraftBudget& made, double step_s, double row_s) {
    for (int i = 0; i < 3; ++i) made.observe(1, 1, step_s + row_s);
    for (int rows = 2; rows <= 8; ++rows) made.observe(1, rows, step_s + rows * row_s);
  };
  measure(budget, 10e-3, 1e-3);
  EXPECT_EQ(budget.rows(1, likely), 4);
  EXPECT_EQ(budget.rows(1, likely, 20e-3), 0) << "guesses cost more than they save";
  EXPECT_EQ(budget.rows(1, std::vector{0.05, 0.0025}), 0);
  DraftBudget dear;
  measure(dear, 0, 1e-3);
  EXPECT_EQ(dear.rows(1, likely), 0) << "each row costs as much as a token";
}

TEST(DraftBudget, AskForTimesThatWereNotMeasured) {
  DraftBudget budget;
  for (const double seconds : {1.0, 1.0, 1e-3}) budget.observe(1, 1, seconds);  // the first are slow
  EXPECT_EQ(budget.seconds(16), 1e-3) << "free until it is tried";
  budget.observe(1, 9, 5e-3);
  EXPECT_DOUBLE_EQ(budget.seconds(5), 3e-3);
  EXPECT_EQ(budget.seconds(16), 5e-3);
  budget.observe(1, 5, 50e-3);
  EXPECT_EQ(budget.seconds(5), 5e-3) << "one slow step: nine rows took less";
}

TEST(DraftBudget, MeasuresStepsWithoutGuessesAgain) {
  DraftBudget budget;
  const std::vector<double> likely{0.9, 0.81};
  for (int i = 0; i < 3; ++i) budget.observe(1, 1, 1e-3);
  int steps = 0;
  for (; budget.rows(1, likely) > 0 && steps < 1000; ++steps) budget.observe(1, 1 + budget.rows(1, likely), 1e-3);
  EXPECT_EQ(steps, 32);
  for (int i = 0; i < 20; ++i) budget.observe(1, 1, 1e-4);
  EXPECT_EQ(budget.rows(1, likely), 0) << "by now it is much faster without";
}

TEST(DraftBudget, TriesFourRowsFirstAndThenAtMostTwiceWhatItKnows) {
  DraftBudget budget;
  const std::vector<double> likely(15, 0.99);
  for (int i = 0; i < 3; ++i) budget.observe(1, 1, 1e-3);
  std::vector<int> tried;
  for (int i = 0; i < 5; ++i) {
    tried.push_back(budget.rows(1, likely));
    budget.observe(1, 1 + tried.back(), 1e-3);
  }
  EXPECT_EQ(tried, (std::vector{3, 7, 15, 15, 15}));
}

TEST(DraftBudget, WrongGuessesAreSoonLeftAloneAndSeldomTried) {
  DraftBudget budget;
  DraftAcceptance acceptance;
  double seconds = 0;
  for (int step = 0; step < 1000; ++step) {
    std::vector<double> chances;
    for (double chance = acceptance.rate(); chances.size() < 15; chance *= acceptance.rate()) chances.push_back(chance);
    const int guesses = budget.rows(1, chances);
    if (guesses > 0) acceptance.observe(guesses, 0);
    if (guesses == 0) acceptance.skip();
    budget.observe(1, 1 + guesses, 10e-3 + guesses * 2e-3);
    seconds += 10e-3 + guesses * 2e-3;
  }
  EXPECT_LT(seconds, 1.01 * 10) << "against 1000 steps without guesses";
}

TEST(DraftAcceptance, FollowsWhatComesTrueAndIsTriedAgain) {
  DraftAcceptance acceptance;
  for (int i = 0; i < 30; ++i) acceptance.observe(4, 0);
  EXPECT_LT(acceptance.rate(), 0.05);
  for (int i = 0; i < 400; ++i) acceptance.skip();
  EXPECT_GT(acceptance.rate(), 0.2);
  for (int i = 0; i < 20; ++i) acceptance.observe(4, 4);
  EXPECT_GT(acceptance.rate(), 0.95);
  acceptance.observe(1, 0);
  for (int i = 0; i < 100; ++i) acceptance.skip();
  const double once = acceptance.rate();
  for (int i = 0; i < 30; ++i) acceptance.observe(1, 0);
  for (int i = 0; i < 100; ++i) acceptance.skip();
  EXPECT_LT(acceptance.rate(), once) << "the more tries in vain, the later the next";
}

}  // namespace
}  // namespace butterfly
