#include "butterfly/machine/prediction_history.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

namespace butterfly {
namespace {

TEST(PredictionHistory, WithoutOneAnIntervalIsTheOneAssumedAndAShortageMakesTimesLonger) {
  const PredictionHistory none({});
  const Interval quiet = none.of_time(10.0, 0.0);
  EXPECT_DOUBLE_EQ(quiet.low, 8.2);
  EXPECT_DOUBLE_EQ(quiet.high, 11.8);
  EXPECT_LE(half_width(quiet, 10.0), 0.20);
  const Interval disturbed = none.of_time(10.0, 0.5);
  EXPECT_DOUBLE_EQ(disturbed.low, 8.2) << "others make nothing faster";
  EXPECT_DOUBLE_EQ(disturbed.high, 23.6);
  EXPECT_GT(half_width(disturbed, 10.0), kWidestInterval);
}

TEST(PredictionHistory, ARateFallsWhereTimesRise) {
  const PredictionHistory history({});
  const Interval rate = history.of_rate(100.0, 0.2);
  EXPECT_NEAR(rate.high, 100.0 / 0.82, 1e-9);
  EXPECT_NEAR(rate.low, 100.0 / (1.18 / 0.8), 1e-9);
}

TEST(PredictionHistory, NineOfTenTimesLieWithinWhateverTheErrorOfTheModel) {
  std::mt19937 random(7);
  std::normal_distribution<double> error(1.35, 0.05);  // a model that is a third too fast
  PredictionHistory history({});
  int within = 0;
  constexpr int kRuns = 400, kFirst = 10;
  for (int run = 0; run < kRuns; ++run) {
    const double measured = 2.0 * error(random);
    if (run >= kFirst) within += history.of_time(2.0, 0.0).holds(measured) ? 1 : 0;
    history.add_time(2.0, measured, 0.0);
  }
  EXPECT_GE(within, 0.9 * (kRuns - kFirst));
  EXPECT_LE(half_width(history.of_time(2.0, 0.0), 2.0), 0.15) << "and are not wide for it";
}

TEST(PredictionHistory, WhatWasDisturbedSaysNothing) {
  PredictionHistory history({});
  history.add_time(1.0, 2.0, 0.5);
  history.add_time(1.0, 1.1, 0.05);
  history.add_rate(100.0, 80.0, 0.0);
  history.add_time(0.0, 1.0, 0.0);
  history.add_rate(1.0, 0.0, 0.0);
  ASSERT_EQ(history.ratios().size(), 2u);
  EXPECT_DOUBLE_EQ(history.ratios()[0], 1.1);
  EXPECT_DOUBLE_EQ(history.ratios()[1], 1.25);
}

TEST(PredictionHistory, IsKeptBetweenRunsForItsKindAlone) {
  const std::string folder = std::filesystem::path(testing::TempDir()) / "prediction-history";
  std::filesystem::remove_all(folder);
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  for (int i = 0; i < 100; ++i) PredictionHistory::open("decode").add_time(1.0, 1.0 + 0.01 * i, 0.0);
  const PredictionHistory kept = PredictionHistory::open("decode");
  EXPECT_EQ(kept.ratios().size(), 60u) << "the latest";
  EXPECT_DOUBLE_EQ(kept.ratios().back(), 1.99);
  EXPECT_TRUE(PredictionHistory::open("prefill").ratios().empty());
  saved.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", saved.c_str(), 1);
}

}  // namespace
}  // namespace butterfly
