#include "butterfly/plan/simulation/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace butterfly {
namespace {

using ::testing::HasSubstr;

constexpr LinkDescriptor kInstant{.latency_us = 0.0, .gb_per_s = 1.0};

/// One node per stage, each a second per step, over links that take nothing because messages are empty.
SimulatedPipeline seconds_pipeline(int stages) {
  SimulatedPipeline pipeline;
  pipeline.nodes = stages;
  for (int stage = 0; stage < stages; ++stage) pipeline.stages.push_back({stage});
  pipeline.compute_s = [](int, std::size_t, const StepShape&) { return 1.0; };
  pipeline.exchange_s = [](int, const StepShape&) { return 0.0; };
  pipeline.message_bytes = [](int, const StepShape&) { return 0.0; };
  pipeline.link = [](int, int) { return kInstant; };
  return pipeline;
}

SimulationReport must_simulate(const SimulatedPipeline& pipeline, const SimulationOptions& options) {
  const auto report = simulate(pipeline, options);
  EXPECT_TRUE(report) << (report ? "" : report.error().message);
  return report ? *report : SimulationReport{};
}

TEST(Simulator, OneRequestOnOneStageTakesExactlyTheClosedFormula) {
  SimulatedPipeline pipeline = seconds_pipeline(1);
  pipeline.compute_s = [](int, std::size_t, const StepShape& step) {
    return 0.5 + step.rows + 0.25 * step.past * step.rows;
  };
  pipeline.message_bytes = [](int hop, const StepShape& step) {
    return hop == 0 ? 1e9 * step.rows : 2e9 * step.logit_rows;
  };
  pipeline.link = [](int, int) { return LinkDescriptor{.latency_us = 125'000.0, .gb_per_s = 2.0}; };
  const SimulationReport report = must_simulate(pipeline, {.prompt = 7, .generated = 3, .prefill_chunk = 512});
  // Prompt: 7 rows there, each looking at 3.5 positions in the mean, one row of logits back, 1/8 s for each way.
  const double first = 0.125 + 3.5 + (0.5 + 7 + 0.25 * 3.5 * 7) + 0.125 + 1.0;
  EXPECT_EQ(report.first_token_s.p50, first);
  // Then tokens at positions 7 and 8.
  const double token = 0.125 + 0.5 + 0.5 + 1 + 0.125 + 1.0;
  EXPECT_EQ(report.request_s.p99, first + 2 * token + 0.25 * (7.5 + 8.5));
  EXPECT_EQ(report.seconds, report.request_s.p50);
  EXPECT_EQ(report.tokens_per_s, 3 / report.seconds);
  EXPECT_EQ(report.failures, 0);
}

TEST(Simulator, MicroBatchesPassAPipelineInStagesPlusMicroBatchesMinusOneSlots) {
  for (int stages : {1, 2, 5}) {
    for (int micro_batches : {1, 3, 9}) {
      const SimulationReport report =
          must_simulate(seconds_pipeline(stages), {.prompt = 10 * micro_batches, .generated = 1, .prefill_chunk = 10});
      EXPECT_EQ(report.seconds, stages + micro_batches - 1) << stages << " stages, " << micro_batches;
    }
  }
}

TEST(Simulator, TheSlowestStageSetsThePaceOfManyRequests) {
  SimulatedPipeline pipeline = seconds_pipeline(3);
  pipeline.compute_s = [](int stage, std::size_t, const StepShape&) { return stage == 1 ? 4.0 : 1.0; };
  const SimulationReport report =
      must_simulate(pipeline, {.requests = 3, .prompt = 1, .generated = 100, .sequences_max = 3});
  EXPECT_EQ(report.seconds, 300 * 4.0 + 2.0);
  EXPECT_NEAR(report.utilisation[1], 1.0, 0.01);
  EXPECT_NEAR(report.utilisation[0], 0.25, 0.01);
}

TEST(Simulator, UtilisationSumsToTheWorkThatThereIs) {
  const int stages = 4, requests = 6, tokens = 20;
  const SimulationReport report =
      must_simulate(seconds_pipeline(stages),
                    {.requests = requests, .rate_per_s = 0.01, .prompt = 5, .generated = tokens, .sequences_max = 1});
  const double busy = std::accumulate(report.utilisation.begin(), report.utilisation.end(), 0.0) * report.seconds;
  EXPECT_NEAR(busy, stages * requests * tokens, 1e-6);
  for (double share : report.utilisation) {
    EXPECT_GT(share, 0.0);
    EXPECT_LE(share, 1.0);
  }
}

TEST(Simulator, ANodeWithTwoStagesComputesOneStepAtATime) {
  SimulatedPipeline pipeline = seconds_pipeline(2);
  pipeline.nodes = 1;
  pipeline.stages = {{0}, {0}};
  const SimulationReport report = must_simulate(pipeline, {.prompt = 40, .generated = 1, .prefill_chunk = 10});
  EXPECT_EQ(report.seconds, 8.0);
  EXPECT_EQ(report.utilisation[0], 1.0);
}

/// Links alone take time: a second for each message to stages that are not first.
SimulatedPipeline links_pipeline(const std::vector<std::vector<int>>& stages) {
  SimulatedPipeline pipeline = seconds_pipeline(4);
  pipeline.stages = stages;
  pipeline.compute_s = [](int, std::size_t, const StepShape&) { return 0.0; };
  const int last = static_cast<int>(stages.size());
  pipeline.message_bytes = [last](int hop, const StepShape&) { return hop == 0 || hop == last ? 0.0 : 1e9; };
  return pipeline;
}

TEST(Simulator, TwoMessagesOnOneLinkTakeTwiceAsLongAndOnTwoLinksTheyDoNot) {
  const SimulationOptions one{.requests = 1, .prompt = 1, .generated = 1};
  SimulationOptions two = one;
  two.requests = 2;
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1}}), one).seconds, 1.0);
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1}}), two).seconds, 2.0);
  // Negative control: while the second message is on the first link, the first is on the second.
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1}, {2}}), one).seconds, 2.0);
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1}, {2}}), two).seconds, 3.0);
  // Scattered stages come back to the same link.
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1}, {0}, {1}}), one).seconds, 3.0);
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1}, {0}, {1}}), two).seconds, 4.0);
}

TEST(Simulator, ASharedCardSendsOneMessageAtATimeWhateverTheLink) {
  SimulationOptions options{.requests = 3, .prompt = 1, .generated = 1};
  const SimulatedPipeline pipeline = links_pipeline({{0}, {1}, {0}, {2}});
  EXPECT_EQ(must_simulate(pipeline, options).seconds, 5.0);
  options.shared_nic = true;
  EXPECT_EQ(must_simulate(pipeline, options).seconds, 6.0);
}

TEST(Simulator, AGroupIsSentToOneMemberAfterTheOther) {
  EXPECT_EQ(must_simulate(links_pipeline({{0}, {1, 2, 3}}), {.prompt = 1, .generated = 1}).seconds, 3.0);
}

TEST(Simulator, AGroupWaitsForItsSlowestMemberAndForItsExchanges) {
  SimulatedPipeline pipeline = seconds_pipeline(3);
  pipeline.stages = {{0, 1, 2}};
  pipeline.compute_s = [](int, std::size_t member, const StepShape&) { return 1.0 + static_cast<double>(member); };
  pipeline.exchange_s = [](int, const StepShape&) { return 0.5; };
  const SimulationReport report = must_simulate(pipeline, {.prompt = 1, .generated = 2});
  EXPECT_EQ(report.seconds, 2 * 3.5);
  EXPECT_EQ(report.utilisation[0], 1.0 / 3.5);
  EXPECT_EQ(report.utilisation[2], 3.0 / 3.5);
}

TEST(Simulator, RequestsBeyondTheLimitWaitForTheirTurn) {
  const SimulationReport report =
      must_simulate(seconds_pipeline(1), {.requests = 3, .prompt = 1, .generated = 2, .sequences_max = 1});
  EXPECT_EQ(report.first_token_s.p50, 3.0);
  EXPECT_EQ(report.first_token_s.p99, 5.0);
  EXPECT_EQ(report.seconds, 6.0);
}

TEST(Simulator, TheSeedDecidesEverythingAndNothingElseDoes) {
  const SimulationOptions options{.requests = 50,
                                  .rate_per_s = 0.02,
                                  .prompt = 30,
                                  .generated = 10,
                                  .prefill_chunk = 8,
                                  .jitter = 0.2,
                                  .fail_every_s = 400.0,
                                  .detect_s = 2.0,
                                  .seed = 1};
  const SimulatedPipeline pipeline = seconds_pipeline(3);
  const SimulationReport a = must_simulate(pipeline, options), again = must_simulate(pipeline, options);
  SimulationOptions other = options;
  other.seed = 2;
  const SimulationReport b = must_simulate(pipeline, other);
  EXPECT_EQ(a.seconds, again.seconds);
  EXPECT_EQ(a.request_s.p95, again.request_s.p95);
  EXPECT_EQ(a.utilisation, again.utilisation);
  EXPECT_GT(a.failures, 0);
  EXPECT_NE(a.seconds, b.seconds);
}

TEST(Simulator, JitterKeepsTheMeanAndArrivalsKeepTheirRate) {
  SimulationOptions options{
      .requests = 2000, .rate_per_s = 0.05, .prompt = 1, .generated = 1, .jitter = 0.3, .seed = 3};
  const SimulationReport report = must_simulate(seconds_pipeline(1), options);
  EXPECT_NEAR(report.seconds, 2000 / 0.05, 0.1 * 2000 / 0.05);
  EXPECT_NEAR(report.utilisation[0] * report.seconds, 2000, 40);
  EXPECT_GT(report.request_s.p99, 1.3);
  options.jitter = 0.0;
  EXPECT_EQ(must_simulate(seconds_pipeline(1), options).request_s.p50, 1.0);
}

TEST(Simulator, AFailureCostsItsDetectionAndReadingEverythingAgain) {
  // A prompt of 4 chunks and 50 tokens: 53 steps of one second.
  const SimulationOptions calm{.prompt = 40, .generated = 50, .prefill_chunk = 10, .detect_s = 3.0};
  const SimulatedPipeline pipeline = seconds_pipeline(1);
  const double undisturbed = must_simulate(pipeline, calm).seconds;
  EXPECT_EQ(undisturbed, 53.0);
  SimulationOptions stormy = calm;
  stormy.fail_every_s = 60.0;
  int struck = 0;
  for (stormy.seed = 0; stormy.seed < 40; ++stormy.seed) {
    const SimulationReport report = must_simulate(pipeline, stormy);
    if (report.failures == 0) {
      EXPECT_EQ(report.seconds, undisturbed);
      EXPECT_EQ(report.replayed_rows, 0u);
    }
    if (report.failures != 1) continue;
    ++struck;
    // The step that was cut short, the detection, and the positions known by then in chunks of 10 instead of one by
    // one.
    const double replay = std::ceil(static_cast<double>(report.replayed_rows) / 10);
    EXPECT_GE(report.seconds, undisturbed + 3.0 + replay - 1.0);
    EXPECT_LE(report.seconds, undisturbed + 3.0 + replay + 1.0);
  }
  EXPECT_GT(struck, 5);
}

TEST(Simulator, AThousandStagesTakeAMomentAndNoStepIsLost) {
  const SimulationOptions options{.requests = 64, .prompt = 32, .generated = 20, .sequences_max = 64};
  const SimulationReport report = must_simulate(seconds_pipeline(1000), options);
  EXPECT_EQ(report.seconds, 20 * 1000.0 + 63.0);
  EXPECT_GT(report.events, 64u * 20u * 2000u);
}

TEST(Simulator, OptionsThatMakeNoSenseAreNamed) {
  const auto message = [](const SimulationOptions& options) {
    return simulate(seconds_pipeline(1), options).error().message;
  };
  EXPECT_EQ(message({.requests = 0}), "0 requests, expected 1 to 10000000");
  EXPECT_THAT(message({.requests = 2'000'000'000}), HasSubstr("2000000000 requests"));
  EXPECT_THAT(message({.prompt = -3}), HasSubstr("-3 prompt tokens"));
  EXPECT_THAT(message({.rate_per_s = -1.0}), HasSubstr("the arrival rate is -1"));
  EXPECT_THAT(message({.jitter = std::nan("")}), HasSubstr("the jitter is nan"));
  EXPECT_THAT(message({.fail_every_s = 0.01}), HasSubstr("no request came to its end"));
}

}  // namespace
}  // namespace butterfly
