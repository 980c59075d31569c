#include "butterfly/model/core/config_json.h"

#include <gtest/gtest.h>

#include <cstring>

namespace butterfly {
namespace {

TEST(ConfigJson, EveryNamedShapeSurvivesTheWayToAWorker) {
  for (const std::string& name : named_configs()) {
    auto config = named_config(name);
    ASSERT_TRUE(config);
    config->norm_epsilon = 1.1e-5f;
    const std::string text = to_json(*config);
    const auto parsed = parse_config(text);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ(to_json(*parsed), text);
    // The epsilon shows in every bit of the output: it must not change by a rounding.
    EXPECT_EQ(std::memcmp(&parsed->norm_epsilon, &config->norm_epsilon, sizeof(float)), 0);
  }
}

TEST(ConfigJson, ChoicesOfOtherFamiliesSurviveAndAreLeftOutWhereTheyAreOff) {
  ModelConfig config = *named_config("butterfly-demo");
  EXPECT_EQ(to_json(config).find("windows"), std::string::npos);
  config.norm_place = NormPlace::kBoth;
  config.qk_norm = QkNorm::kWidth;
  config.windows = {0, 7, 0, 7, 7};
  config.ropes = {kMainRope, kLocalRope, kNoRope, kMainRope, kLocalRope};
  config.local_rope = config.rope;
  config.local_rope.base = 1e6f;
  config.rope.magnitude = 1.19f;
  config.attention_scale = 0.1f;
  config.attention_cap = 50.0f;
  config.logit_cap = 30.0f;
  config.embedding_scale = 16.0f;
  config.residual_scale = 0.22f;
  config.logit_scale = 0.125f;
  config.head_bias = true;
  config.attention_sinks = true;
  const auto parsed = parse_config(to_json(config));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(to_json(*parsed), to_json(config));
  EXPECT_EQ(parsed->windows, config.windows);
  EXPECT_EQ(parsed->ropes, config.ropes);
  EXPECT_EQ(parsed->local_rope.base, 1e6f);
  config.windows.pop_back();
  EXPECT_EQ(parse_config(to_json(config)).error().message, "4 sliding windows for 5 layers");
}

TEST(ConfigJson, LatentAttentionSurvivesAndIsChecked) {
  ModelConfig config = *named_config("butterfly-demo");
  config.kv_heads = 1;
  config.rope.dim = 16;
  config.latent = {.dim = 40, .query_rank = 24, .value_dim = 12};
  const auto parsed = parse_config(to_json(config));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(to_json(*parsed), to_json(config));
  EXPECT_EQ(parsed->latent.query_rank, 24);
  EXPECT_EQ(parsed->cached_key_dim(), 56);
  EXPECT_EQ(parsed->mixed_dim(), 8 * 12);
  config.kv_heads = 2;
  EXPECT_EQ(parse_config(to_json(config)).error().message,
            "a latent is read by all heads, the model has 2 key-value heads");
  config.kv_heads = 1;
  config.rope.dim = 32;
  EXPECT_EQ(parse_config(to_json(config)).error().message,
            "latent attention rotates 32 of 32 elements of a head, expected a part of it");
}

TEST(ConfigJson, HostileTextGivesAnErrorThatNamesTheField) {
  EXPECT_FALSE(parse_config(""));
  EXPECT_FALSE(parse_config("[]"));
  EXPECT_EQ(parse_config("{}").error().message,
            "the field architecture of a model's configuration is missing or of another type");
  std::string text = to_json(*named_config("butterfly-demo"));
  const auto replace = [](std::string in, const std::string& from, const std::string& to) {
    return in.replace(in.find(from), from.size(), to);
  };
  EXPECT_FALSE(parse_config(replace(text, "\"layers\":5", "\"layers\":\"5\"")));
  EXPECT_FALSE(parse_config(replace(text, "\"layers\":5", "\"layers\":-5")));
  EXPECT_FALSE(parse_config(replace(text, "\"layers\":5", "\"layers\":99999999999")));
  EXPECT_FALSE(parse_config(replace(text, "\"mlp\":0", "\"mlp\":7")));
  EXPECT_TRUE(parse_config(text));
}

}  // namespace
}  // namespace butterfly
