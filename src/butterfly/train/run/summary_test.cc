#include "butterfly/train/run/summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/machine/isa.h"
#include "butterfly/train/run/training_peak.h"

namespace butterfly {
namespace {

StepReport step(double seconds, double loss) {
  StepReport report{.loss = loss, .tokens = 100};
  report.phases = {
      .data_s = 0.1 * seconds, .forward_s = 0.3 * seconds, .backward_s = 0.6 * seconds, .total_s = seconds};
  report.reduced = {.bytes_sent = 5000, .communication_s = 0.4 * seconds, .exposed_s = 0.1 * seconds, .codec_s = 0.01};
  return report;
}

TEST(Summary, TheShareOfARankIsThatOfEachStep) {
  Statistics statistics;
  for (int i = 0; i < 2; ++i) statistics.add(step(9.0, 1.0), 0.1, 1, 1);
  for (const double share : {0.5, 0.5, 1.0, 1.0})
    statistics.add(step(share, 1.0), share, 1, 1);  // alone from the third on
  const RunSummary summary = statistics.summary({.forward_flops_per_token = 1e9, .peak_gflops = 400});
  EXPECT_DOUBLE_EQ(summary.rank_share, 0.75);
  EXPECT_DOUBLE_EQ(summary.mfu, 100 * 3.0 / 400);  // 100 tokens of 3 GFLOP in each second
}

TEST(Summary, CountsAllStepsAndTimesThoseAfterTheFirstTwo) {
  Statistics statistics;
  for (const double seconds : {9.0, 5.0, 1.0, 3.0}) statistics.add(step(seconds, seconds), 0.5, 1000, 2000);
  const RunSummary summary =
      statistics.summary({.sequences_per_step = 10, .forward_flops_per_token = 2e9, .peak_gflops = 600});
  EXPECT_EQ(summary.num_steps, 4);
  EXPECT_EQ(summary.warmup_steps, 2);
  EXPECT_DOUBLE_EQ(summary.avg_step_time, 2.0);
  EXPECT_DOUBLE_EQ(summary.step_time_variance, 1.0);
  EXPECT_DOUBLE_EQ(summary.min_step_time, 1.0);
  EXPECT_DOUBLE_EQ(summary.max_step_time, 3.0);
  EXPECT_DOUBLE_EQ(summary.tokens_per_sec, 50.0);
  EXPECT_DOUBLE_EQ(summary.samples_per_sec, 5.0);
  EXPECT_DOUBLE_EQ(summary.avg_loss, 4.5);
  EXPECT_DOUBLE_EQ(summary.final_loss, 3.0);
  EXPECT_DOUBLE_EQ(summary.phases.backward_s, 1.2);
  EXPECT_DOUBLE_EQ(summary.communication_hidden_s, 0.6);
  EXPECT_DOUBLE_EQ(summary.network_s, 0.8);
  EXPECT_NEAR(summary.network_s_variance, 0.16, 1e-12);
  EXPECT_DOUBLE_EQ(summary.network_kb_per_s, 2.5);
  EXPECT_DOUBLE_EQ(summary.flops_per_token, 6e9);
  EXPECT_DOUBLE_EQ(summary.flops_per_step, 6e11);
  // 50 tokens/s, half of them here, 6 GFLOPs each, of 600 GFLOP/s.
  EXPECT_DOUBLE_EQ(summary.mfu, 0.25);
}

TEST(Summary, TimesTheFirstStepsWhereThereAreNoOthers) {
  Statistics statistics;
  statistics.add(step(4.0, 1.0), 1.0, 1, 1);
  EXPECT_DOUBLE_EQ(statistics.summary({}).avg_step_time, 4.0);
  EXPECT_EQ(statistics.summary({}).mfu, 0.0);
}

TEST(Summary, KnowsPeaksAndMeansOfMemory) {
  Statistics statistics;
  statistics.add(step(1.0, 1.0), 1.0, 100, 1000);
  statistics.add(step(1.0, 1.0), 1.0, 300, 500);
  const RunSummary summary = statistics.summary({});
  EXPECT_EQ(summary.peak_memory_allocated, 300u);
  EXPECT_EQ(summary.avg_memory_allocated, 200u);
  EXPECT_EQ(summary.peak_memory_reserved, 1000u);
  EXPECT_EQ(summary.avg_memory_reserved, 750u);
}

TEST(Summary, OfNoStepsIsZero) {
  const RunSummary summary = Statistics().summary({.sequences_per_step = 4, .peak_gflops = 100});
  EXPECT_EQ(summary.num_steps, 0);
  EXPECT_EQ(summary.tokens_per_sec, 0.0);
  EXPECT_EQ(summary.mfu, 0.0);
}

TEST(TrainingPeak, OfBf16IsAtLeastThatOfFp32WithWhichACpuWithoutItMultiplies) {
  const auto fp32 = measured_training_peak(Precision::kFloat32, supported_isas().back(), 1);
  const auto bf16 = measured_training_peak(Precision::kBfloat16, supported_isas().back(), 1);
  ASSERT_TRUE(fp32 && bf16);
  EXPECT_GT(fp32->gflops, 0.0);
  EXPECT_GE(bf16->gflops, 0.999 * fp32->gflops);  // which is kept with six digits
}

TEST(Summary, HasTheFieldsKeys) {
  Statistics statistics;
  statistics.add(step(1.0, 1.0), 1.0, 100, 1000);
  const auto json = parse_json(to_json(statistics.summary({})));
  for (const char* key : {"num_steps",
                          "avg_step_time",
                          "min_step_time",
                          "max_step_time",
                          "tokens_per_sec",
                          "samples_per_sec",
                          "avg_loss",
                          "final_loss",
                          "peak_memory_allocated",
                          "avg_memory_allocated",
                          "peak_memory_reserved",
                          "data_s",
                          "forward_s",
                          "backward_s",
                          "optimizer_s",
                          "communication_exposed_s",
                          "communication_hidden_s",
                          "load_balance_factor",
                          "flops_per_step",
                          "flops_per_token",
                          "flops_convention",
                          "mfu",
                          "peak_source",
                          "network_kb_per_s",
                          "network_s_variance",
                          "compression_s_variance"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

TEST(Summary, RowsOfRanksSurviveBeingSharedAndTheSlowestIsNamed) {
  std::vector<RankRow> rows(3, {.micro_batches = 2, .samples = 8, .compute_s = 1.0, .network_kb_per_s = 10.0});
  rows[1] = {.micro_batches = 1,
             .samples = 4,
             .compute_s = 1.3,
             .communication_exposed_s = 0.25,
             .network_s = 0.5,
             .network_s_variance = 0.125,
             .compression_s = 0.75,
             .compression_s_variance = 0.0625,
             .network_kb_per_s = 4.0,
             .peak_memory_allocated = 1u << 30,
             .peak_memory_reserved = 1u << 31};
  EXPECT_EQ(to_numbers(rows[1]).size(), kRankNumbers);
  EXPECT_EQ(to_numbers(rank_row(to_numbers(rows[1]))), to_numbers(rows[1]));
  const RankSpread spread = spread_of(rows);
  EXPECT_EQ(spread.straggler, 1);
  EXPECT_DOUBLE_EQ(spread.best_kb_per_s, 10.0);
  EXPECT_DOUBLE_EQ(spread.worst_kb_per_s, 4.0);
  EXPECT_DOUBLE_EQ(spread.mean_kb_per_s, 8.0);
  EXPECT_NEAR(spread.network_s_deviation, std::sqrt(0.25 / 3 - 0.25 / 9), 1e-12);
  rows[1].compute_s = 1.1;
  EXPECT_EQ(spread_of(rows).straggler, -1);
}

}  // namespace
}  // namespace butterfly
