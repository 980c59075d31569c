#include "butterfly/plan/simulation/forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace butterfly {
namespace {

class ForecastTest : public ::testing::Test {
 protected:
  PlanPrediction of(const RunShape& run) { return forecast(config, cluster, plan, DType::kF16, run)->plan; }
  const ModelConfig config = *named_config("llama-1.1b");
  const PlanCluster cluster =
      cluster_of(std::vector<NodeDescriptor>(2, {.memory_read_gb_per_s = 16, .fp32_gflops = 100, .int8_gops = 400}));
  const Plan plan = *make_plan(config, cluster, {.prompt = 64});
};

TEST_F(ForecastTest, ARunLikeThePlannedOneHasThePlansPrediction) {
  const Plan planned = *make_plan(config, cluster, {.context = 356, .prompt = 128});
  const PlanPrediction run = of({.prompt = 128, .generated = 100});
  EXPECT_DOUBLE_EQ(run.token_s, planned.prediction.token_s);
  EXPECT_DOUBLE_EQ(run.ttft_s, planned.prediction.ttft_s);
}

TEST_F(ForecastTest, LongerPromptsTakeLongerAndSoDoLaterTokens) {
  const PlanPrediction small = of({.prompt = 16, .generated = 16});
  const PlanPrediction large = of({.prompt = 512, .generated = 16});
  EXPECT_GT(large.ttft_s, 4 * small.ttft_s);
  EXPECT_GT(large.token_s, small.token_s);
}

// One sequence has nothing to wait for: the simulator adds up what the formulas say, but for the growing context.
TEST_F(ForecastTest, OneSequenceIsSimulatedAsItIsPredicted) {
  const RunForecast one = *forecast(config, cluster, plan, DType::kF16, {.prompt = 64, .generated = 64});
  EXPECT_NEAR(one.simulated_s, one.plan.ttft_s + 64 * one.plan.token_s, 0.01 * one.simulated_s);
}

// Fails when a prompt is predicted as one chunk, or its chunks are all on one link at once: a scheduler cuts it, so
// that stages compute while links carry.
TEST_F(ForecastTest, APromptThatIsCutOverlapsOnLinksOfEveryRate) {
  for (const double gb_per_s : {0.0004, 0.01, 0.1, 10.0}) {
    PlanCluster linked = cluster;
    linked.default_link = {.latency_us = 100, .gb_per_s = gb_per_s};
    const RunForecast cut = *forecast(config, linked, plan, DType::kF16, {.prompt = 301});
    EXPECT_NEAR(cut.plan.ttft_s, cut.simulated_s, 0.01 * cut.simulated_s) << gb_per_s;
    EXPECT_GT(cut.plan.ttft_s, 301.0 * 4 * config.model_dim / (gb_per_s * 1e9)) << gb_per_s;
  }
}

TEST_F(ForecastTest, MoreSequencesGiveMoreTokens) {
  EXPECT_GT(of({.sequences = 8, .prompt = 16, .generated = 16}).tokens_per_s,
            of({.sequences = 1, .prompt = 16, .generated = 16}).tokens_per_s);
}

TEST_F(ForecastTest, GroupsThatMeasuredTheirExchangesAreForecastWithThemAlsoByTheSimulator) {
  const RunShape run{.prompt = 64, .generated = 64};
  const Plan group = *make_plan(config, cluster, {.strategy = "tensor", .prompt = 64});
  const RunForecast assumed = *forecast(config, cluster, group, DType::kF16, run);
  const ExchangeTimes times{.one_row_s = 5e-3, .many_rows = 64, .many_rows_s = 80e-3};
  const std::vector<ExchangeTimes> of_shares(2, times);
  const RunForecast measured = *forecast(config, with_exchanges(cluster, group, of_shares), group, DType::kF16, run);
  const double exchanges = 2 * config.layers;
  EXPECT_NEAR(measured.plan.token_s - assumed.plan.token_s, (exchanges + 2) * 5e-3, 0.1 * exchanges * 5e-3);
  EXPECT_GT(measured.plan.ttft_s, exchanges * 80e-3);
  EXPECT_NEAR(measured.simulated_s, measured.plan.ttft_s + 64 * measured.plan.token_s, 0.01 * measured.simulated_s);
}

TEST_F(ForecastTest, SharesThatAreNoGroupsHaveNoExchanges) {
  const std::vector<ExchangeTimes> times(2, {.one_row_s = 1.0, .many_rows = 64, .many_rows_s = 1.0});
  EXPECT_TRUE(with_exchanges(cluster, plan, times).measured_groups.empty());
  const Plan group = *make_plan(config, cluster, {.strategy = "tensor", .prompt = 64});
  EXPECT_TRUE(with_exchanges(cluster, group, {}).measured_groups.empty());
}

TEST(PredictionError, IsRelativeToWhatWasPredicted) {
  EXPECT_DOUBLE_EQ(*prediction_error(2.0, 2.5), 0.25);
  EXPECT_FALSE(prediction_error(std::numeric_limits<double>::infinity(), 1.0));
  EXPECT_FALSE(prediction_error(1.0, 0.0));
}

}  // namespace
}  // namespace butterfly
