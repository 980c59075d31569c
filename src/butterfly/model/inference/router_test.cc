// Which experts a token goes through: every rule of choice on scores whose answer can be seen.
#include "butterfly/model/inference/router.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "butterfly/kernel/inference/dispatch.h"

namespace butterfly {
namespace {

struct Chosen {
  std::vector<int> experts;
  std::vector<float> weights;
};

Chosen choose(const MoeConfig& config, std::vector<float> logits, const std::vector<float>& bias = {}) {
  std::vector<float> choice(logits.size());
  Chosen chosen{std::vector<int>(static_cast<std::size_t>(config.experts_used)),
                std::vector<float>(static_cast<std::size_t>(config.experts_used))};
  choose_experts(kernels_for(Isa::kReference), config, bias.empty() ? nullptr : bias.data(), logits, choice,
                 chosen.experts, chosen.weights);
  return chosen;
}

using Ints = std::vector<int>;

TEST(Router, OfEqualScoresTheLowerIndexIsChosenAndExpertsAscend) {
  const MoeConfig config{.experts = 6, .experts_used = 3};
  EXPECT_EQ(choose(config, {1, 1, 1, 1, 1, 1}).experts, (Ints{0, 1, 2}));
  EXPECT_EQ(choose(config, {0, 2, 0, 2, 0, 9}).experts, (Ints{1, 3, 5}));
  EXPECT_EQ(choose(config, {0, 2, 2, 2, 2, 1}).experts, (Ints{1, 2, 3}));
}

TEST(Router, WeightsAreSoftmaxOverAllOrOverTheChosenOrSigmoids) {
  MoeConfig config{.experts = 4, .experts_used = 2};
  const std::vector<float> logits{std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(1.0f)};
  Chosen chosen = choose(config, logits);
  EXPECT_EQ(chosen.experts, (Ints{1, 2}));
  EXPECT_NEAR(chosen.weights[0], 0.5f, 1e-6f);
  EXPECT_NEAR(chosen.weights[1], 0.25f, 1e-6f);
  config.scores = MoeConfig::Scores::kSoftmaxOfChosen;
  chosen = choose(config, logits);
  EXPECT_NEAR(chosen.weights[0], 2.0f / 3, 1e-6f);
  EXPECT_NEAR(chosen.weights[1], 1.0f / 3, 1e-6f);
  config.scores = MoeConfig::Scores::kSigmoid;
  chosen = choose(config, logits);
  EXPECT_NEAR(chosen.weights[0], 0.8f, 1e-6f);
  EXPECT_NEAR(chosen.weights[1], 2.0f / 3, 1e-6f);
}

TEST(Router, RenormalisedWeightsAddUpToTheScale) {
  MoeConfig config{.experts = 4, .experts_used = 2, .renormalise = true, .weight_scale = 2.5f};
  const Chosen chosen = choose(config, {0.3f, -2.0f, 1.7f, 0.1f});
  EXPECT_NEAR(chosen.weights[0] + chosen.weights[1], 2.5f, 1e-6f);
  config.renormalise_epsilon = 1.0f;
  const Chosen damped = choose(config, {0.3f, -2.0f, 1.7f, 0.1f});
  EXPECT_LT(damped.weights[0] + damped.weights[1], 1.3f);
}

TEST(Router, ABiasOfTheChoiceDoesNotWeigh) {
  const MoeConfig config{.experts = 3, .experts_used = 1, .scores = MoeConfig::Scores::kSigmoid, .choice_bias = true};
  const Chosen chosen = choose(config, {0.0f, 1.0f, -1.0f}, {0.0f, 0.0f, 5.0f});
  EXPECT_EQ(chosen.experts, (Ints{2}));
  EXPECT_NEAR(chosen.weights[0], 1.0f / (1.0f + std::exp(1.0f)), 1e-6f);
}

TEST(Router, ExpertsComeFromTheBestGroupsByOneScoreOrByTwo) {
  MoeConfig config{.experts = 6, .experts_used = 2, .groups = 3, .groups_used = 1};
  const std::vector<float> logits{3.0f, -9.0f, 2.0f, 1.9f, 0.0f, 0.0f};
  EXPECT_EQ(choose(config, logits).experts, (Ints{0, 1})) << "the largest score";
  config.scores = MoeConfig::Scores::kSigmoid;
  config.group_score = MoeConfig::GroupScore::kTwoLargest;
  EXPECT_EQ(choose(config, logits).experts, (Ints{2, 3})) << "the sum of the two largest";
  config.groups_used = 2;
  EXPECT_EQ(choose(config, logits).experts, (Ints{2, 3})) << "groups 1 and 2, not expert 0";
}

TEST(Router, WhateverTheScoresAreEachTokenHasItsExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const auto scores :
       {MoeConfig::Scores::kSoftmax, MoeConfig::Scores::kSoftmaxOfChosen, MoeConfig::Scores::kSigmoid}) {
    const MoeConfig config{.experts = 4, .experts_used = 3, .scores = scores, .groups = 2, .groups_used = 2};
    for (const float value : {nan, infinity, -infinity, 3e38f}) {
      for (const auto& logits : {std::vector{value, value, value, value}, std::vector{0.0f, value, 1.0f, value}}) {
        const Chosen chosen = choose(config, logits);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(chosen.experts[i] >= 0 && chosen.experts[i] < 4);
          if (i == 0) continue;
          EXPECT_LT(chosen.experts[i - 1], chosen.experts[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace butterfly
