// What is drawn, against the logits processors of transformers (tools/make_sampling_golden.py).
#include <gtest/gtest.h>

#include <cmath>

#include "butterfly/base/json.h"
#include "butterfly/infer/request/sampler.h"
#include "golden_data.h"

namespace butterfly {
namespace {

std::vector<TokenId> to_ids(const nlohmann::json& numbers) {
  std::vector<TokenId> ids;
  for (const auto& number : numbers) ids.emplace_back(number.get<int>());
  return ids;
}

SamplingOptions to_options(const nlohmann::json& settings) {
  SamplingOptions options{.temperature = settings["temperature"].get<float>(), .seed = 11};
  options.top_k = settings.value("top_k", 0);
  options.top_p = settings.value("top_p", 1.0f);
  options.min_p = settings.value("min_p", 0.0f);
  options.repeat_penalty = settings.value("repeat_penalty", 1.0f);
  options.repeat_window = kWholeText;
  options.presence_penalty = settings.value("presence_penalty", 0.0f);
  options.frequency_penalty = settings.value("frequency_penalty", 0.0f);
  const nlohmann::json bias = settings.value("logit_bias", nlohmann::json::object());
  for (const auto& [id, value] : bias.items()) {
    options.logit_bias.push_back({TokenId(std::stoi(id)), value.get<float>()});
  }
  return options;
}

TEST(SamplingGolden, DrawsFromWhatTheProcessorsOfTransformersLeave) {
  const nlohmann::json golden = parse_json(golden::read_file(golden::committed("sampling.json")));
  ASSERT_FALSE(golden.is_discarded());
  constexpr int kDraws = 4000;
  for (const auto& made : golden["cases"]) {
    const auto prompt = to_ids(made["prompt"]);
    const auto answer = to_ids(made["answer"]);
    SamplingOptions options = to_options(made["settings"]);
    std::vector<int> counts(made["logits"].size());
    for (int i = 0; i < kDraws; ++i) {
      Sampler sampler(options, {.prompt = prompt, .sample_index = static_cast<std::uint64_t>(i)});
      for (const TokenId token : answer) ASSERT_TRUE(sampler.accept(token));
      auto logits = made["logits"].get<std::vector<float>>();
      const auto sampled = sampler.sample(logits);
      ASSERT_TRUE(sampled);
      ++counts[static_cast<std::size_t>(sampled->token.value)];
    }
    for (std::size_t id = 0; id < counts.size(); ++id) {
      const double p = made["left"].value(std::to_string(id), 0.0);
      EXPECT_TRUE(p > 0 || counts[id] == 0) << id << " of " << made["settings"];
      // Five standard deviations.
      EXPECT_NEAR(counts[id] / double{kDraws}, p, 5 * std::sqrt(p * (1 - p) / kDraws) + 1e-3) << made["settings"];
    }
    options.logprobs = 3;
    Sampler sampler(options, {.prompt = prompt});
    auto logits = made["logits"].get<std::vector<float>>();
    const auto sampled = sampler.sample(logits);
    ASSERT_TRUE(sampled);
    const auto expected = made["logprobs"].get<std::vector<double>>();
    EXPECT_NEAR(sampled->logprob, expected[static_cast<std::size_t>(sampled->token.value)], 2e-6);
    for (const TokenLogprob& top : sampled->top) {
      EXPECT_NEAR(top.logprob, expected[static_cast<std::size_t>(top.token.value)], 2e-6);
    }
  }
}

}  // namespace
}  // namespace butterfly
