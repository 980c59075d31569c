#include "butterfly/infer/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <thread>

#include "butterfly/infer/scheduler/fake_pipeline_test.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

TEST_F(SchedulerTest, TextsAreTheSameBesideOthersUnderAnyLimit) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(request_of(i % 5, 10 + 60 * (i % 4), 20 + 30 * (i % 3)));
  for (const std::int64_t cache_tokens : {0, 512, 1024}) {
    for (const int way : {0, 1, 2, 3, 4, 5}) {
      const bool keep = way % 2 == 1;
      FakePipeline pipeline;
      pipeline.stages = 1 + way / 2;
      Scheduler scheduler(pipeline, tokenizer_,
                          {.context = 100'000,
                           .rows_max = 100,
                           .sequences_max = 5,
                           .cache_tokens = cache_tokens,
                           .keep_prefixes = keep,
                           .slowdown_max = 1.5});
      const auto texts = generate(scheduler, requests, {});
      ASSERT_TRUE(texts) << texts.error().message;
      for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*texts)[i].tokens, alone(requests[i])) << i;
      EXPECT_TRUE(keep || pipeline.cached_sequences() == 0);
      EXPECT_TRUE(cache_tokens == 0 || scheduler.stats().cache_pages <= scheduler.stats().cache_pages_max);
    }
  }
}

TEST_F(SchedulerTest, AGivenUpSequenceSaysTheSame) {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(request_of(i, 10, 3 * kKvPageTokens));
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000, .cache_tokens = 6 * kKvPageTokens});
  const auto texts = generate(scheduler, requests, {});
  ASSERT_TRUE(texts);
  EXPECT_GT(scheduler.stats().preempted, 0u);
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*texts)[i].tokens, alone(requests[i])) << i;
  EXPECT_EQ(scheduler.stats().cache_pages, 0);
}

#ifndef BUTTERFLY_TINY  // whose rings hold 8 spans
TEST_F(SchedulerTest, ARecordingHasEachTurnAndWithinThemEachToken) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000});
  const std::vector<Request> requests{request_of(1, 10, 6), request_of(2, 12, 6)};
  trace::reset();
  trace::set_recording(true);
  ASSERT_TRUE(generate(scheduler, requests, {}));
  trace::set_recording(false);
  const auto spans = trace::drain().spans;
  const auto count = [&](trace::Zone zone) { return std::ranges::count(spans, zone, &trace::Span::zone); };
  EXPECT_EQ(count(trace::Zone::kStepTurn), pipeline.steps);
  EXPECT_EQ(count(trace::Zone::kSample), 12);
  EXPECT_EQ(count(trace::Zone::kTextDecode), 12 + 2) << "each token, and what a text ends with";
  EXPECT_EQ(trace::read(trace::Counter::kInferTokensDecoded), 12u);
  EXPECT_EQ(trace::read(trace::Counter::kInferTokensPrefilled), 22u);
  for (const trace::Span& span : spans) {
    if (span.zone != trace::Zone::kSample) continue;
    EXPECT_EQ(span.work.in, static_cast<std::uint32_t>(FakePipeline::kVocab));
    EXPECT_TRUE(std::ranges::any_of(spans, [&](const trace::Span& turn) {
      return turn.zone == trace::Zone::kStepTurn && turn.begin_ns <= span.begin_ns && span.end_ns <= turn.end_ns;
    }));
  }
}
#endif

TEST_F(SchedulerTest, TheSamePromptAgainCostsItsLastPageAlone) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000, .keep_prefixes = true});
  const Request request = request_of(1, 10 * kKvPageTokens, 1);
  const auto first = generate(scheduler, std::span(&request, 1), {}).value();
  const std::int64_t before = pipeline.rows;
  const auto second = generate(scheduler, std::span(&request, 1), {}).value();
  EXPECT_EQ(pipeline.rows - before, kKvPageTokens);
  EXPECT_EQ(second[0].cached_tokens, 9 * kKvPageTokens);
  EXPECT_EQ(second[0].tokens, first[0].tokens);
}

TEST_F(SchedulerTest, AConversationIsComputedOnce) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 2048, .cache_tokens = 2048, .keep_prefixes = true});
  Request request = request_of(1, 100, 50);
  std::int64_t tokens = 0;
  for (int turn = 0; turn < 8; ++turn) {
    const auto answer = generate(scheduler, std::span(&request, 1), {}).value();
    EXPECT_EQ(answer[0].tokens, alone(request)) << turn;
    request.prompt.insert(request.prompt.end(), answer[0].tokens.begin(), answer[0].tokens.end());
    for (int i = 0; i < 20; ++i) request.prompt.emplace_back(5 + i);
    tokens = static_cast<std::int64_t>(request.prompt.size());
  }
  EXPECT_LT(pipeline.rows, tokens + 8 * kKvPageTokens) << "each turn repeats less than a page";
}

TEST_F(SchedulerTest, TextsGoOnAfterADeathAndWhatWasKeptIsGone) {
  for (int after = 0; after < 12; ++after) {
    FakePipeline pipeline;
    Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000, .rows_max = 50, .keep_prefixes = true});
    std::vector<Request> requests{request_of(1, 200, 5), request_of(1, 200, 9), request_of(2, 30, 3)};
    ASSERT_TRUE(generate(scheduler, std::span(requests).first(1), {}));
    pipeline.fail_after(after);
    const auto texts = generate(scheduler, requests, {});
    ASSERT_TRUE(texts) << texts.error().message;
    for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*texts)[i].tokens, alone(requests[i])) << i;
  }
}

TEST_F(SchedulerTest, AnErrorThatCannotBeMendedEndsAllRequestsAndTheNextOnesAreTried) {
  FakePipeline pipeline;
  pipeline.recovers = false;
  pipeline.fail_after(2);
  Scheduler scheduler(pipeline, tokenizer_, {.context = 1000, .sequences_max = 1});
  const std::vector<Request> requests{request_of(1, 10, 5), request_of(2, 10, 5)};
  EXPECT_EQ(generate(scheduler, requests, {}).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(scheduler.stats().failed, 2u);
  EXPECT_TRUE(generate(scheduler, requests, {}));
}

TEST_F(SchedulerTest, RequestsFromManyThreadsWhileAnotherComputes) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_,
                      {.context = 100'000, .sequences_max = 3, .cache_tokens = 4096, .keep_prefixes = true});
  std::stop_source stop;
  std::thread computing([&] { EXPECT_TRUE(scheduler.run(stop.get_token())); });
  std::mutex mutex;
  std::map<int, std::vector<TokenId>> texts;
  std::atomic<int> left{40};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const int n = t * 10 + i;
        const auto id = scheduler.submit({.request = request_of(n % 3, 100, 10 + n), .user = std::to_string(t)},
                                         {.done = [&, n](Result<Generation> generation) {
                                           const std::lock_guard lock(mutex);
                                           texts[n] = generation.value().tokens;
                                           --left;
                                         }});
        ASSERT_TRUE(id);
        if (n % 7 == 3) scheduler.cancel(*id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (left > 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stop.request_stop();
  computing.join();
  ASSERT_EQ(texts.size(), 40u);
  for (int n = 0; n < 40; ++n) {
    const std::vector<TokenId> whole = alone(request_of(n % 3, 100, 10 + n));
    EXPECT_TRUE(n % 7 == 3 || texts[n] == whole) << n;
    EXPECT_TRUE(std::equal(texts[n].begin(), texts[n].end(), whole.begin())) << n;
  }
}

TEST_F(SchedulerTest, ThePromptsOwnTokensHaveLogprobsThoughItIsCachedAndReplayed) {
  Request request = request_of(3, 3 * kKvPageTokens, 20);
  const std::vector<TokenId> follows = alone(request);
  // Three tokens of the prompt are what the model would have said.
  for (int i = 0; i < 3; ++i) request.prompt.push_back(follows[static_cast<std::size_t>(i)]);
  request.prompt_logprobs = 2;
  for (const int tokens_max : {0, 8}) {
    for (const int fail_after : {-1, 1, 3}) {
      request.tokens_max = tokens_max;
      FakePipeline pipeline;
      Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000, .keep_prefixes = true});
      ASSERT_TRUE(generate(scheduler, std::span(&request, 1), {}));
      pipeline.fail_after(fail_after);
      const auto texts = generate(scheduler, std::span(&request, 1), {});
      ASSERT_TRUE(texts) << texts.error().message;
      const Generation& text = (*texts)[0];
      EXPECT_EQ(text.tokens.size(), static_cast<std::size_t>(tokens_max));
      ASSERT_EQ(text.prompt_logprobs.size(), request.prompt.size() - 1);
      for (std::size_t i = 1; i < request.prompt.size(); ++i) {
        const SampledToken& sampled = text.prompt_logprobs[i - 1];
        EXPECT_EQ(sampled.token, request.prompt[i]);
        ASSERT_EQ(sampled.top.size(), 2u);
        if (i + 3 < request.prompt.size()) continue;
        EXPECT_EQ(sampled.top[0].token, sampled.token) << i;
        EXPECT_EQ(sampled.top[0].logprob, sampled.logprob) << i;
      }
    }
  }
}

TEST_F(SchedulerTest, AStopEndsWhatComputesAndWhatWaits) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 100'000, .sequences_max = 1});
  std::stop_source stop;
  int cancelled = 0;
  for (int i = 0; i < 3; ++i) {
    const auto count = [&](Result<Generation> generation) {
      cancelled += generation && generation->reason == FinishReason::kCancelled ? 1 : 0;
    };
    ASSERT_TRUE(scheduler.submit({.request = request_of(i, 10, 50'000)},
                                 {.token = [&](const TokenEvent&) { stop.request_stop(); }, .done = count}));
  }
  EXPECT_TRUE(scheduler.run(stop.get_token()));
  EXPECT_EQ(cancelled, 3);
  EXPECT_EQ(scheduler.stats().cache_pages, 0);
}

TEST_F(SchedulerTest, ADeadlineEndsATextWithWhatItHas) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 10'000'000});
  std::optional<Generation> ended;
  ASSERT_TRUE(scheduler.submit({.request = request_of(1, 10, 5'000'000),
                                .deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(30)},
                               {.done = [&](Result<Generation> generation) { ended = *generation; }}));
  EXPECT_TRUE(scheduler.run_until_idle());
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->reason, FinishReason::kCancelled);
}

// Fails where a token that the model lacks comes into a step, which would end the texts beside it, too.
TEST_F(SchedulerTest, ATokenOutsideTheModelIsRefusedByNameAndOthersGoOn) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 1000, .vocab = 50});
  Request request;
  request.tokens_max = 3;
  request.prompt = {TokenId(49)};
  request.ignore_end = true;
  bool ended = false;
  EXPECT_TRUE(scheduler.submit({.request = request}, {.done = [&](const auto& text) { ended = text.has_value(); }}));
  request.prompt = {TokenId(49), TokenId(50)};
  EXPECT_EQ(scheduler.submit({.request = request}, {}).error().message,
            "the prompt has token 50 ('t50'), the model has 50");
  std::swap(request.encoded, request.prompt);
  request.prompt = {TokenId(1)};
  EXPECT_EQ(scheduler.submit({.request = request}, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(scheduler.run_until_idle());
  EXPECT_TRUE(ended);
}

TEST_F(SchedulerTest, RefusesWhatCannotBeComputed) {
  FakePipeline pipeline;
  Scheduler scheduler(pipeline, tokenizer_, {.context = 1000, .cache_tokens = 500, .waiting_max = 1});
  EXPECT_EQ(scheduler.submit({.request = request_of(1, 0, 5)}, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(scheduler.submit({.request = request_of(1, 1000, 5)}, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(scheduler.submit({.request = request_of(1, 10, 0)}, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(scheduler.submit({.request = request_of(1, 10, 600)}, {}).error().code, ErrorCode::kNoMemory);
  EXPECT_TRUE(scheduler.submit({.request = request_of(1, 10, 5)}, {}));
  EXPECT_EQ(scheduler.submit({.request = request_of(1, 10, 5)}, {}).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(scheduler.stats().refused, 1u);
}

}  // namespace
}  // namespace butterfly
