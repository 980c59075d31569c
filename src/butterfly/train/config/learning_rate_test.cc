#include "butterfly/train/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace butterfly {
namespace {

ScheduleConfig schedule(ScheduleKind kind, int warmup) {
  return {.kind = kind, .warmup_steps = warmup, .final_share = 0.1, .decay_share = 0.2};
}

class EveryKind : public ::testing::TestWithParam<ScheduleKind> {};

TEST_P(EveryKind, WarmsUpLinearlyToThePeakAndWastesNoStep) {
  for (int step = 0; step < 10; ++step) {
    EXPECT_DOUBLE_EQ(rate_share(schedule(GetParam(), 10), 100, step), (step + 1) / 10.0) << step;
  }
  EXPECT_DOUBLE_EQ(rate_share(schedule(GetParam(), 10), 100, 10), 1.0);
  EXPECT_DOUBLE_EQ(rate_share(schedule(GetParam(), 0), 100, 0), 1.0);
}

TEST_P(EveryKind, EndsAtTheFinalShareUnlessItIsConstant) {
  const double end = GetParam() == ScheduleKind::kConstant ? 1.0 : 0.1;
  EXPECT_NEAR(rate_share(schedule(GetParam(), 10), 100, 99), end, 1e-15);
}

TEST_P(EveryKind, NeverRisesAfterTheWarmUp) {
  for (int step = 10; step < 100; ++step) {
    EXPECT_LE(rate_share(schedule(GetParam(), 10), 100, step + 1), rate_share(schedule(GetParam(), 10), 100, step));
  }
}

INSTANTIATE_TEST_SUITE_P(Schedule, EveryKind,
                         ::testing::Values(ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine,
                                           ScheduleKind::kWsd));

TEST(Schedule, LinearAndCosineFollowTheirFormulas) {
  for (int step = 10; step < 111; ++step) {
    const double p = (step - 10) / 100.0;
    EXPECT_NEAR(rate_share(schedule(ScheduleKind::kLinear, 10), 111, step), 1.0 - 0.9 * p, 1e-12);
    EXPECT_NEAR(rate_share(schedule(ScheduleKind::kCosine, 10), 111, step),
                0.1 + 0.45 * (1.0 + std::cos(std::numbers::pi * p)), 1e-12);
  }
}

TEST(Schedule, WsdIsFlatUntilItsLastFifth) {
  const ScheduleConfig wsd = schedule(ScheduleKind::kWsd, 10);
  for (int step = 10; step < 80; ++step) EXPECT_DOUBLE_EQ(rate_share(wsd, 100, step), 1.0);
  for (int step = 80; step < 100; ++step) {
    EXPECT_NEAR(rate_share(wsd, 100, step), 1.0 - 0.9 * (step - 79) / 20.0, 1e-12) << step;
  }
}

TEST(Schedule, TheRateIsTheShareOfThePeak) {
  RunConfig config;
  config.steps = 100;
  config.optimizer.rate = 4e-3;
  config.schedule = schedule(ScheduleKind::kLinear, 4);
  EXPECT_DOUBLE_EQ(rate_of_step(config, 1), 2e-3);
}

}  // namespace
}  // namespace butterfly
