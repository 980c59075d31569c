#include "butterfly/study/analysis/summary.h"

#include <gtest/gtest.h>

#include <random>

namespace butterfly::study {
namespace {

TEST(Summary, OfFewValues) {
  const std::vector<double> values{1, 2, 3, 4, 10};
  const Summary summary = summarize(values, 2);
  EXPECT_EQ(summary.count, 5);
  EXPECT_DOUBLE_EQ(summary.mean, 4.0);
  EXPECT_DOUBLE_EQ(summary.median, 3.0);
  EXPECT_DOUBLE_EQ(summary.deviation, std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(summary.least, 1.0);
  EXPECT_DOUBLE_EQ(summary.most, 10.0);
  // Blocks 1, 2 and 3, 4, 10: means 1.5 and 17/3; half their difference is the error of their mean.
  EXPECT_NEAR(summary.half_width, 12.706 * (17.0 / 3 - 1.5) / 2, 1e-9);
  EXPECT_EQ(summarize(std::vector<double>{7}).half_width, 0.0);
  EXPECT_EQ(summarize({}).count, 0);
}

TEST(Summary, RepeatsCountAsBlocks) {
  const Summary summary = summarize_repeats({{1, 1, 1}, {3, 3}, {}});
  EXPECT_EQ(summary.blocks, 2);
  EXPECT_NEAR(summary.half_width, 12.706, 1e-9);
}

TEST(Summary, TheIntervalHoldsTheMeanIn95Of100Cases) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(10.0, 2.0);
  int inside = 0;
  constexpr int kTrials = 2000;
  for (int i = 0; i < kTrials; ++i) {
    std::vector<double> values(50);
    for (double& value : values) value = normal(random);
    const Summary summary = summarize(values);
    inside += summary.low() <= 10.0 && 10.0 <= summary.high() ? 1 : 0;
  }
  EXPECT_NEAR(inside, 0.95 * kTrials, 0.015 * kTrials);
}

}  // namespace
}  // namespace butterfly::study
