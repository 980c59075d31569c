#include "butterfly/model/core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "butterfly/model/core/weights.h"
#include "butterfly/model/format/model_files_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

// Totals published with the models; GPT-3's paper rounds to 174,600 M (table 2.1 with tied embedding, biases and
// norms).
TEST(Config, NamedShapesHaveThePublishedParameterCounts) {
  const auto count = [](const char* name) { return parameter_count(*named_config(name)); };
  EXPECT_EQ(count("llama-1.1b"), 1100048384u);
  EXPECT_EQ(count("llama-2-7b"), 6738415616u);
  EXPECT_EQ(count("llama-2-13b"), 13015864320u);
  EXPECT_EQ(count("llama-2-70b"), 68976648192u);
  EXPECT_EQ(count("llama-3.2-1b"), 1235814400u);
  EXPECT_EQ(count("llama-3.1-8b"), 8030261248u);
  EXPECT_EQ(count("llama-3.1-70b"), 70553706496u);
  EXPECT_EQ(count("llama-3.1-405b"), 405853388800u);
  EXPECT_EQ(count("qwen2-0.5b"), 494032768u);
  EXPECT_EQ(count("gpt2-124m"), 124439808u);
  EXPECT_EQ(count("gpt2-355m"), 354823168u);
  EXPECT_EQ(count("gpt2-774m"), 774030080u);
  EXPECT_EQ(count("gpt2-xl"), 1557611200u);
  EXPECT_EQ(count("mistral-7b"), 7248023552u);
  EXPECT_EQ(count("tinytransformer-tiny"), 2617600u);
  EXPECT_NEAR(static_cast<double>(count("gpt-3-175b")), 174.6e9, 0.05e9);
}

TEST(Config, ShapesAreFoundInCapitalsToo) {
  EXPECT_EQ(named_config("Llama-2-7B")->name, "llama-2-7b");
}

TEST(Config, UnknownShapeListsTheKnownOnes) {
  const auto config = named_config("llama-9b");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("llama-2-7b"));
}

TEST(Config, ValidateNamesBothDisagreeingValues) {
  const auto message = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = small_config();
    change(config);
    const auto status = validate(config);
    return status ? "" : status.error().message;
  };
  EXPECT_EQ(message([](ModelConfig&) {}), "");
  EXPECT_THAT(message([](ModelConfig& c) { c.layers = 0; }), HasSubstr("number of layers is 0, expected 1 to"));
  EXPECT_THAT(message([](ModelConfig& c) { c.kv_heads = 3; }), HasSubstr("4 heads cannot share 3"));
  EXPECT_THAT(message([](ModelConfig& c) { c.kv_heads = 8; }), HasSubstr("key-value heads is 8, expected 1 to 4"));
  EXPECT_THAT(message([](ModelConfig& c) { c.heads = c.head_dim = c.kv_heads = 65536; }), HasSubstr("head size"));
  EXPECT_THAT(message([](ModelConfig& c) { c.vocab = std::numeric_limits<int>::max(); }), HasSubstr("vocabulary size"));
  EXPECT_THAT(message([](ModelConfig& c) { c.norm_epsilon = std::nanf(""); }), HasSubstr("epsilon"));
  EXPECT_THAT(message([](ModelConfig& c) { c.rope.dim = 10; }), HasSubstr("rotates 10 elements of heads of 8"));
  EXPECT_THAT(message([](ModelConfig& c) { c.rope.base = 1e-30f; }), HasSubstr("rope base"));
  EXPECT_THAT(message([](ModelConfig& c) { c.rope.factors = {1.0f}; }), HasSubstr("1 rope frequency factors for 4"));
  EXPECT_THAT(message([](ModelConfig& c) { c.rope.factors.assign(4, 1e-30f); }), HasSubstr("over 16 positions"));
}

TEST(Weights, ATiedModelListsTheSharedMatrixOnce) {
  ModelConfig config = small_config();
  const auto names = [&](const WeightRange& range) {
    std::vector<std::string> result;
    for (const WeightInfo& info : expected_weights(config, range)) result.push_back(info.name);
    return result;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({.embedding = true, .head = true}),
            (Names{"token_embd.weight", "output_norm.weight", "output.weight"}));
  config.tied_head = true;
  EXPECT_EQ(names({.embedding = true, .head = true}), (Names{"token_embd.weight", "output_norm.weight"}));
  EXPECT_EQ(names({.head = true}), (Names{"token_embd.weight", "output_norm.weight"}));
  EXPECT_EQ(names({.first_layer = 1, .last_layer = 2}).front(), "blk.1.attn_norm.weight");
}

TEST(Config, LatentAttentionThatDoesNotFitIsRefused) {
  ModelConfig config = *named_config("butterfly-demo");
  config.kv_heads = 1;
  config.rope.dim = 16;
  config.latent = {.dim = 40, .query_rank = 24, .value_dim = 12};
  ASSERT_TRUE(validate(config)) << validate(config).error().message;
  EXPECT_EQ(config.cached_key_dim(), 56);
  EXPECT_EQ(config.mixed_dim(), 8 * 12);
  config.kv_heads = 2;
  EXPECT_EQ(validate(config).error().message, "a latent is read by all heads, the model has 2 key-value heads");
  config.kv_heads = 1;
  config.rope.dim = 32;
  EXPECT_EQ(validate(config).error().message,
            "latent attention rotates 32 of 32 elements of a head, expected a part of it");
}

TEST(Weights, FindCheckedNamesBothShapes) {
  const Checkpoint checkpoint = small_checkpoint();
  const auto wrong = find_checked(*checkpoint.weights, {.name = "blk.0.ffn_up.weight", .rows = 64, .cols = 33});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message,
              HasSubstr("blk.0.ffn_up.weight is 64 x 32, the model's configuration says 64 x 33"));
  const auto missing = find_checked(*checkpoint.weights, {.name = "blk.7.ffn_up.weight", .rows = 64, .cols = 32});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("blk.7.ffn_up.weight"));
}

}  // namespace
}  // namespace butterfly
