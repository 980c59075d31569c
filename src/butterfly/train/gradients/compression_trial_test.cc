#include "butterfly/train/gradients/compression_trial.h"

#include <gtest/gtest.h>

#include <random>

namespace butterfly {
namespace {

using Side = CompressionTrial::Side;
using Verdict = CompressionTrial::Verdict;

struct Outcome {
  Verdict verdict = Verdict::kOpen;
  int steps = 0, challenging = 0;
};

template <typename Held, typename Challenger>
Outcome run_trial(CompressionTrial trial, Held held_s, Challenger challenger_s) {
  Outcome outcome;
  while (outcome.verdict == Verdict::kOpen) {
    const bool challenging = trial.side() == Side::kChallenger;
    ++outcome.steps;
    outcome.challenging += challenging ? 1 : 0;
    outcome.verdict = trial.observe(challenging ? challenger_s() : held_s());
  }
  return outcome;
}

/// Steps of a mean of seconds, each off by a tenth, and one of twenty three times as long.
auto noisy(double seconds, std::mt19937& random) {
  return [seconds, &random] {
    const double hiccup = std::uniform_int_distribution(0, 19)(random) == 0 ? 3.0 : 1.0;
    return seconds * hiccup * std::max(0.5, std::normal_distribution(1.0, 0.1)(random));
  };
}

double share_won(double held_s, double challenger_s) {
  std::mt19937 random(1);
  constexpr int kTrials = 2000;
  int won = 0;
  for (int i = 0; i < kTrials; ++i) {
    const auto outcome = run_trial({{held_s}, {}}, noisy(held_s, random), noisy(challenger_s, random));
    won += outcome.verdict == Verdict::kChallenger ? 1 : 0;
  }
  return static_cast<double>(won) / kTrials;
}

TEST(CompressionTrial, EqualsLeaveWhatIsHeldAlsoInNoise) {
  const auto steady = run_trial(
      {{1.0}, {}}, [] { return 1.0; }, [] { return 1.0; });
  EXPECT_EQ(steady.verdict, Verdict::kHeld);
  EXPECT_LT(share_won(1.0, 1.0), 0.05);
}

TEST(CompressionTrial, ASlowerChallengerAlmostNeverWins) {
  EXPECT_LT(share_won(1.0, 1.05), 0.01);
  EXPECT_LT(share_won(1.0, 1.2), 0.001);
}

TEST(CompressionTrial, AMuchFasterChallengerWinsAlsoInNoise) {
  EXPECT_GT(share_won(1.0, 0.5), 0.97);
}

TEST(CompressionTrial, ASmallLeadIsSeenWhereStepsAreSteady) {
  const auto outcome = run_trial(
      {{1.0}, {}}, [] { return 1.0; }, [] { return 0.95; });
  EXPECT_EQ(outcome.verdict, Verdict::kChallenger);
  EXPECT_EQ(run_trial(
                {{1.0}, {}}, [] { return 1.0; }, [] { return 0.99; })
                .verdict,
            Verdict::kHeld);
}

TEST(CompressionTrial, AnOutlierOfEitherSideDoesNotChangeTheVerdict) {
  int calls = 0;
  const auto once_slow = [&] { return ++calls == 6 ? 9.0 : 0.9; };
  EXPECT_EQ(run_trial(
                {{1.0}, {}}, [] { return 1.0; }, once_slow)
                .verdict,
            Verdict::kChallenger);
}

TEST(CompressionTrial, WhatIsClearEndsEarly) {
  // With two steps known of what is held, the challenger's first block is enough.
  const auto won = run_trial(
      {{4.0, 4.1}, {}}, [] { return 4.0; }, [] { return 1.0; });
  EXPECT_EQ(won.verdict, Verdict::kChallenger);
  EXPECT_EQ(won.steps, CompressionTrial::kBlock);
  const auto lost = run_trial(
      {{1.0, 1.0}, {}}, [] { return 1.0; }, [] { return 4.0; });
  EXPECT_EQ(lost.verdict, Verdict::kHeld);
  EXPECT_EQ(lost.steps, CompressionTrial::kBlock);
}

TEST(CompressionTrial, TheFirstStepAfterAChangeIsNotCounted) {
  CompressionTrial trial({1.0, 1.0}, {});
  EXPECT_FALSE(trial.counted());
  EXPECT_EQ(trial.observe(100.0), Verdict::kOpen);
  EXPECT_EQ(trial.observe(0.5), Verdict::kOpen);
  EXPECT_EQ(trial.observe(0.5), Verdict::kChallenger);
}

TEST(CompressionTrial, EndsAfterAFewBlocksWhateverTheStepsAre) {
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const auto outcome = run_trial({{1.0}, {}}, noisy(1.0, random), noisy(1.0, random));
    EXPECT_LE(outcome.challenging, 4 * CompressionTrial::kBlock);
  }
}

}  // namespace
}  // namespace butterfly
