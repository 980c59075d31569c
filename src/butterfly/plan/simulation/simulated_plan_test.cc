#include "butterfly/plan/simulation/simulated_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace butterfly {
namespace {

PlanCluster mixed_cluster() {
  PlanCluster cluster;
  for (int i = 0; i < 4; ++i) {
    cluster.nodes.push_back({.name = fmt::format("n{}", i),
                             .threads = 4,
                             .memory_read_gb_per_s = 20.0 + 5 * i,
                             .fp32_gflops = 200.0 + 30 * i,
                             .dispatch_us = 4.0,
                             .wake_us = 30.0 + i});
  }
  cluster.default_link = {.latency_us = 80.0, .gb_per_s = 0.5, .wake_us = 60.0};
  return cluster;
}

PlanOptions options_of(const std::string& custom) {
  PlanOptions options{.strategy = "custom", .context = 200, .sequences = 1, .prompt = 98, .chunk = 40};
  options.custom = *parse_custom_plan(custom);
  return options;
}

/// Three tokens around the middle of the context, which is what predictions are about.
TEST(SimulatedPlan, OneUndisturbedRequestTakesWhatThePlanPredicts) {
  ModelConfig config = *named_config("llama-1.1b");
  for (int layer = 0; layer < config.layers; ++layer) config.windows.push_back(layer % 3 == 0 ? 0 : 32);
  const PlanCluster cluster = mixed_cluster();
  for (const char* custom : {"n0 0-21", "n0 0-9\nn3 10-21", "n1 0-21 slices 0-12\nn2 0-21 slices 13-31",
                             "n0 0-5\nn1 6-21 slices 0-10\nn2 6-21 slices 11-22\nn3 6-21 slices 23-31"}) {
    const PlanOptions options = options_of(custom);
    const Plan plan = *make_plan(config, cluster, options);
    const PredictionInput input = *prediction_input(config, cluster, options);
    const auto report = simulate(simulated(input, plan), {.prompt = 98, .generated = 4, .prefill_chunk = 40});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_NEAR(report->first_token_s.p50, plan.prediction.ttft_s, 1e-9 * plan.prediction.ttft_s) << custom;
    const double token_s = (report->request_s.p50 - report->first_token_s.p50) / 3;
    EXPECT_NEAR(token_s, plan.prediction.token_s, 1e-4 * plan.prediction.token_s) << custom;
  }
}

/// Fails where the simulation decodes with an encoder's layers, or reads a text in chunks that an encoder reads whole.
TEST(SimulatedPlan, RequestsOfEncodersTakeWhatThePlanPredicts) {
  ModelConfig config = *named_config("butterfly-demo");
  config.layers = 10;
  config.position = PositionKind::kNone;
  config.relative = {.buckets = 32, .distance = 128, .shared = true};
  const PlanCluster cluster = mixed_cluster();
  for (const int encoder_layers : {6, 10}) {
    config.encoder_layers = encoder_layers;
    for (const char* custom : {"n0 0-9", "n0 0-3\nn1 4-9", "n1 0-9 slices 0-12\nn2 0-9 slices 13-31"}) {
      const PlanOptions options = options_of(custom);
      const auto plan = make_plan(config, cluster, options);
      ASSERT_TRUE(plan) << plan.error().message;
      const PredictionInput input = *prediction_input(config, cluster, options);
      EXPECT_EQ(input.load.chunk, 98u) << "a text is encoded whole";
      // Decode is predicted halfway through the context of 200.
      const auto report = simulate(simulated(input, *plan), {.prompt = 98, .generated = 200, .prefill_chunk = 40});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_NEAR(report->first_token_s.p50, plan->prediction.ttft_s, 1e-9 * plan->prediction.ttft_s) << custom;
      if (encoder_layers == 10) {
        EXPECT_NEAR(plan->prediction.token_s, plan->prediction.ttft_s / 98, 1e-12);
        EXPECT_NEAR(report->tokens_per_s, 98 / plan->prediction.ttft_s, 1e-6 * report->tokens_per_s);
        continue;
      }
      const double token_s = (report->request_s.p50 - report->first_token_s.p50) / 199;
      EXPECT_NEAR(token_s, plan->prediction.token_s, 1e-2 * plan->prediction.token_s) << custom;
    }
  }
}

/// Prediction is a bound here: chunks of a prompt meet each other at the node that has two stages.
TEST(SimulatedPlan, ANodeWithTwoStagesIsWaitedForALittleLongerThanPredicted) {
  const ModelConfig config = *named_config("llama-1.1b");
  const PlanCluster cluster = mixed_cluster();
  const PlanOptions options = options_of("n0 0-4\nn1 5-10\nn0 11-21");
  const Plan plan = *make_plan(config, cluster, options);
  const PredictionInput input = *prediction_input(config, cluster, options);
  const auto report = simulate(simulated(input, plan), {.prompt = 98, .generated = 1, .prefill_chunk = 40});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_GE(report->first_token_s.p50, plan.prediction.ttft_s);
  EXPECT_LE(report->first_token_s.p50, 1.01 * plan.prediction.ttft_s);
}

TEST(SimulatedPlan, ManySequencesComeNearThePredictedThroughput) {
  ModelConfig config = *named_config("llama-1.1b");
  for (int layer = 0; layer < config.layers; ++layer) config.windows.push_back(layer % 3 == 0 ? 0 : 32);
  const PlanCluster cluster = mixed_cluster();
  for (const char* custom : {"n0 0-21", "n0 0-9\nn3 10-21", "n1 0-21 slices 0-12\nn2 0-21 slices 13-31"}) {
    PlanOptions options = options_of(custom);
    options.sequences = 8;
    options.prompt = 10;
    const Plan plan = *make_plan(config, cluster, options);
    const PredictionInput input = *prediction_input(config, cluster, options);
    const auto report =
        simulate(simulated(input, plan), {.requests = 8, .prompt = 10, .generated = 180, .sequences_max = 8});
    ASSERT_TRUE(report);
    EXPECT_NEAR(report->tokens_per_s / plan.prediction.tokens_per_s, 1.0, 0.15) << custom;
  }
}

TEST(SimulatedPlan, UtilisationIsTheWorkOfThePlanAndNoMore) {
  const ModelConfig config = *named_config("llama-1.1b");
  const PlanCluster cluster = mixed_cluster();
  const PlanOptions options = options_of("n0 0-9\nn3 10-21");
  const Plan plan = *make_plan(config, cluster, options);
  const PredictionInput input = *prediction_input(config, cluster, options);
  const auto report = simulate(simulated(input, plan), {.requests = 3, .prompt = 98, .generated = 50});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->utilisation[1], 0.0);
  EXPECT_GT(report->utilisation[0], 0.1);
  EXPECT_LE(std::accumulate(report->utilisation.begin(), report->utilisation.end(), 0.0), 2.0);
}

}  // namespace
}  // namespace butterfly
