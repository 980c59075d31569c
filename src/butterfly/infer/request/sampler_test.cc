#include "butterfly/infer/request/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "butterfly/base/sanitized_test.h"

namespace butterfly {
namespace {

TokenId sample(std::span<float> logits, const SamplingOptions& options, std::span<const TokenId> prompt,
               SampleKey key) {
  std::vector<TokenId> text(prompt.begin(), prompt.end());
  text.resize(std::max<std::size_t>(text.size(), key.position), TokenId(-1));
  Sampler sampler(options, {.prompt = text, .sample_index = key.index});
  auto sampled = sampler.sample(logits);
  EXPECT_TRUE(sampled);
  return sampled->token;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheBest) {
  std::vector<float> logits{1.0f, 3.0f, 3.0f, -1.0f};
  EXPECT_EQ(sample(logits, {}, {}, {}), TokenId(1));
}

TEST(Sampler, NotANumberIsNeverChosen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> logits{nan, 0.5f, nan, 0.25f};
  EXPECT_EQ(sample(logits, {}, {}, {}), TokenId(1));
  for (std::uint64_t i = 0; i < 50; ++i) {
    std::vector<float> again = logits;
    const TokenId token = sample(again, {.temperature = 1.0f}, {}, {.position = i});
    EXPECT_TRUE(token == TokenId(1) || token == TokenId(3));
  }
}

TEST(Sampler, DrawsInProportionToProbability) {
  const std::vector<float> logits{std::log(0.6f), std::log(0.3f), std::log(0.1f)};
  std::map<int, int> counts;
  constexpr int kDraws = kSanitized ? 2000 : 20000;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> copy = logits;
    ++counts[sample(copy, {.temperature = 1.0f, .seed = 5}, {}, {.position = static_cast<std::uint64_t>(i)}).value];
  }
  // Three standard deviations of a binomial with 20,000 draws are below 0.011, with 2,000 below 0.034.
  constexpr double kNear = kSanitized ? 0.034 : 0.011;
  EXPECT_NEAR(counts[0] / double{kDraws}, 0.6, kNear);
  EXPECT_NEAR(counts[1] / double{kDraws}, 0.3, kNear);
  EXPECT_NEAR(counts[2] / double{kDraws}, 0.1, kNear);
}

TEST(Sampler, TheSameKeyDrawsTheSameNumberAndOthersDiffer) {
  EXPECT_EQ(uniform_at(1, 2, 3), uniform_at(1, 2, 3));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 2, 4));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(1, 3, 3));
  EXPECT_NE(uniform_at(1, 2, 3), uniform_at(2, 2, 3));
}

TEST(Sampler, UniformNumbersMatchThePublishedGenerator) {
  // Philox 4x32-10 with zero key and counter begins 6627e8d5 (known-answer file of Random123).
  EXPECT_EQ(uniform_at(0, 0, 0), static_cast<float>(0x6627e8) * 0x1p-24f);
  // All ones: 408f276d.
  EXPECT_EQ(uniform_at(~0ull, ~0ull, ~0ull), static_cast<float>(0x408f27) * 0x1p-24f);
}

std::map<int, int> support(const SamplingOptions& base) {
  std::map<int, int> counts;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
    ++counts[sample(logits, base, {}, {.position = i}).value];
  }
  return counts;
}

TEST(Sampler, CutOffsKeepExactlyTheTokensTheyName) {
  EXPECT_EQ(support({.temperature = 1.0f}).size(), 4u);
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 2}).size(), 2u);
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.75f}).size(), 2u);
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.85f}).size(), 3u);
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 0.25f}).size(), 3u);
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 1}).size(), 1u);
}

TEST(Sampler, ThePenaltyTurnsARepeatedTokenDown) {
  std::vector<float> logits{2.0f, 1.5f};
  const std::vector<TokenId> history{TokenId(0)};
  EXPECT_EQ(sample(logits, {.repeat_penalty = 2.0f}, history, {}), TokenId(1));
  std::vector<float> forgotten{2.0f, 1.5f};
  EXPECT_EQ(sample(forgotten, {.repeat_penalty = 2.0f, .repeat_window = 0}, history, {}), TokenId(0));
}

TEST(Sampler, PenaltiesOnTheAnswerLeaveThePromptAlone) {
  const std::vector<TokenId> prompt{TokenId(0), TokenId(0), TokenId(0)};
  Sampler sampler({.presence_penalty = 0.25f, .frequency_penalty = 0.5f, .logprobs = 0}, {.prompt = prompt});
  const auto next = [&] {
    std::vector<float> logits{2.0f, 1.0f};
    const auto sampled = sampler.sample(logits);
    EXPECT_TRUE(sampled);
    EXPECT_TRUE(sampler.accept(sampled->token));
    return sampled->token;
  };
  // 2, then 2 - 0.75 against 1, then 2 - 1.25 against 1, then 0.75 against 0.25.
  EXPECT_EQ(next(), TokenId(0));
  EXPECT_EQ(next(), TokenId(0));
  EXPECT_EQ(next(), TokenId(1));
  EXPECT_EQ(next(), TokenId(0));
}

/// draw() as it is defined: everything sorted, probabilities by the library's exp.
TokenId draw_slowly(std::span<const float> logits, const SamplingOptions& options, SampleKey key) {
  std::vector<std::pair<double, std::int32_t>> order;  // by -logit, then id
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.emplace_back(-logits[i], static_cast<std::int32_t>(i));
  }
  std::ranges::sort(order);
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> p;
  for (const auto& [negative, id] : order) p.push_back(std::exp((order[0].first - negative) / options.temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  double mass = 0;
  std::size_t kept = 0;
  while (kept < p.size() && (kept == 0 || (mass < options.top_p * total && p[kept] >= options.min_p * p[0]))) {
    mass += p[kept++];
  }
  double threshold = uniform_at(options.seed, key.index, key.position) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    threshold -= p[i];
    if (threshold < 0) return TokenId(order[i].second);
  }
  return TokenId(order[kept - 1].second);
}

TEST(Sampler, DrawsWhatItsDefinitionSays) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const float u = uniform_at(3, 0, i);
    // Equal ones, close ones, both zeros, none, and those that cannot be drawn.
    logits.push_back(u < 0.1f ? -0.0f : u < 0.2f ? 0.0f : u < 0.3f ? -1.0f : (u - 0.6f) * (u < 0.5f ? 1e-3f : 9.0f));
  }
  logits[17] = -infinity;
  logits[18] = std::numeric_limits<float>::quiet_NaN();
  for (const float temperature : {1e-3f, 0.3f, 1.0f, 40.0f}) {
    for (const SamplingOptions& cut : {SamplingOptions{}, SamplingOptions{.top_k = 40}, SamplingOptions{.top_k = 2999},
                                       SamplingOptions{.top_p = 0.8f}, SamplingOptions{.min_p = 0.05f},
                                       SamplingOptions{.top_k = 2000, .top_p = 0.97f, .min_p = 1e-3f}}) {
      SamplingOptions options = cut;
      options.temperature = temperature;
      for (options.seed = 0; options.seed < (kSanitized ? 5 : 40); ++options.seed) {
        EXPECT_EQ(draw(logits, options, {}), draw_slowly(logits, options, {}))
            << temperature << " " << cut.top_k << " " << cut.top_p << " " << cut.min_p << " " << options.seed;
      }
    }
  }
  const std::vector<float> endless{1.0f, infinity, -infinity, 2.0f};
  EXPECT_EQ(draw(endless, {.temperature = 1.0f}, {}), TokenId(1));
  EXPECT_EQ(draw(std::vector<float>(3, -infinity), {.temperature = 1.0f}, {}), TokenId(0));
}

TEST(Sampler, BiasBansAndForces) {
  const std::vector<float> logits{1000.0f, 2.0f, 3.0f, -1000.0f};
  const auto with = [&](std::vector<LogitBias> bias) {
    std::vector<float> copy = logits;
    return sample(copy, {.logit_bias = std::move(bias)}, {}, {}).value;
  };
  EXPECT_EQ(with({{TokenId(0), -100}}), 2);
  EXPECT_EQ(with({{TokenId(0), -100}, {TokenId(1), 1.5f}}), 1);
  EXPECT_EQ(with({{TokenId(3), 100}}), 3);
  EXPECT_EQ(with({{TokenId(3), 100}, {TokenId(3), 0}}), 0);
  EXPECT_EQ(with({{TokenId(0), -100}, {TokenId(1), -100}, {TokenId(2), -100}, {TokenId(3), -100}}), 0);
  std::vector<float> copy = logits;
  Sampler beyond({.logit_bias = {{TokenId(4), 1}}}, {});
  EXPECT_EQ(beyond.sample(copy).error().message, "logit-bias names token 4, the model has 4");
}

TEST(Sampler, LogprobsAreThoseOfTheModel) {
  std::vector<float> logits{std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  Sampler sampler({.temperature = 0.1f, .logit_bias = {{TokenId(2), 100}}, .logprobs = 2}, {});
  const auto sampled = sampler.sample(logits);
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->token, TokenId(2));
  EXPECT_NEAR(sampled->logprob, std::log(0.25), 1e-7);
  ASSERT_EQ(sampled->top.size(), 2u);
  EXPECT_EQ(sampled->top[0].token, TokenId(0));
  EXPECT_NEAR(sampled->top[0].logprob, std::log(0.5), 1e-7);
  EXPECT_EQ(sampled->top[1].token, TokenId(1));  // ties: the lower id
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  EXPECT_EQ(validate({.top_p = 1.5f}).error().message, "top-p is 1.5, it must be above 0 and at most 1");
  EXPECT_FALSE(validate({.temperature = -1.0f}));
  EXPECT_FALSE(validate({.temperature = std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_FALSE(validate({.repeat_penalty = 0.0f}));
  EXPECT_EQ(validate({.presence_penalty = 2.5f}).error().message, "presence-penalty is 2.5, it must be from -2 to 2");
  EXPECT_FALSE(validate({.logit_bias = {{TokenId(-1), 0}}}));
  EXPECT_FALSE(validate({.logit_bias = {{TokenId(1), 100.5f}}}));
  EXPECT_FALSE(validate({.logprobs = 1001}));
  EXPECT_TRUE(validate({.repeat_window = kWholeText, .logprobs = 1000}));
  EXPECT_TRUE(validate(SamplingOptions{}));
}

}  // namespace
}  // namespace butterfly
