#include "butterfly/plan/forecast.h"

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
  const Plan planned = *make_plan(config, cluster, {.context = 300, .prompt = 100});
  const PlanPrediction run = of({.prompt = 100, .generated = 100});
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

TEST_F(ForecastTest, MoreSequencesGiveMoreTokens) {
  EXPECT_GT(of({.sequences = 8, .prompt = 16, .generated = 16}).tokens_per_s,
            of({.sequences = 1, .prompt = 16, .generated = 16}).tokens_per_s);
}

TEST(PredictionError, IsRelativeToWhatWasPredicted) {
  EXPECT_DOUBLE_EQ(*prediction_error(2.0, 2.5), 0.25);
  EXPECT_FALSE(prediction_error(std::numeric_limits<double>::infinity(), 1.0));
  EXPECT_FALSE(prediction_error(1.0, 0.0));
}

}  // namespace
}  // namespace butterfly
