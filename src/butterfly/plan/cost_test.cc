#include "butterfly/plan/cost.h"

#include <gtest/gtest.h>

#include <cmath>

namespace butterfly {
namespace {

ModelConfig must_named(const std::string& name) {
  Result<ModelConfig> config = named_config(name);
  EXPECT_TRUE(config.has_value()) << name;
  return config ? *config : ModelConfig{};
}

ModelCost must_cost(const ModelConfig& config, DType kv_type = DType::kF16) {
  const Result<ModelCost> cost = model_cost(config, kv_type);
  EXPECT_TRUE(cost.has_value());
  return cost ? *cost : ModelCost{};
}

TEST(ModelCost, PartsOfEveryKnownModelAddUpToItsParameters) {
  for (const std::string& name : named_configs()) {
    ModelConfig config = must_named(name);
    config.weight_type = DType::kF32;
    const ModelCost cost = must_cost(config);
    EXPECT_EQ(cost.block.weight_bytes, 4 * block_parameter_count(config)) << name;
    EXPECT_EQ(cost.embedding.weight_bytes + cost.head.weight_bytes - cost.tied_bytes +
                  static_cast<std::uint64_t>(config.layers) * cost.block.weight_bytes,
              4 * parameter_count(config))
        << name;
  }
}

TEST(ModelCost, MatricesHaveTheWeightTypeAndVectorsStayF32) {
  ModelConfig config = must_named("llama-1.1b");
  config.weight_type = DType::kQ4_0;
  const ModelCost cost = must_cost(config);
  const std::uint64_t vectors = 2u * 2048;
  const std::uint64_t matrices = block_parameter_count(config) - vectors;
  EXPECT_EQ(cost.block.weight_bytes, matrices / 32 * 18 + vectors * 4);
  EXPECT_EQ(cost.block.flops, 2.0 * static_cast<double>(matrices));
}

TEST(ModelCost, CacheCountsKeysAndValuesOfTheKvHeadsInTheCachesType) {
  const ModelConfig config = must_named("llama-1.1b");  // 4 heads of 64
  EXPECT_EQ(must_cost(config, DType::kF32).kv_bytes, 2u * 4 * 64 * 4);
  EXPECT_EQ(must_cost(config, DType::kF16).kv_bytes, 2u * 4 * 64 * 2);
  EXPECT_EQ(must_cost(config, DType::kQ8_0).kv_bytes, 2u * 4 * 2 * 34);
}

TEST(ModelCost, CacheTypeThatCutsHeadsIsRefused) {
  ModelConfig config = must_named("llama-1.1b");
  config.head_dim = 48;
  config.rope.dim = 48;
  const Result<ModelCost> cost = model_cost(config, DType::kQ8_0);
  ASSERT_FALSE(cost.has_value());
  EXPECT_EQ(cost.error().code, ErrorCode::kInvalidArgument);
}

TEST(ModelCost, InconsistentModelIsRefused) {
  ModelConfig config = must_named("llama-1.1b");
  config.layers = 0;
  EXPECT_FALSE(model_cost(config, DType::kF16).has_value());
}

class DecodeTime : public testing::Test {
 protected:
  ModelCost cost_ = must_cost(must_named("llama-1.1b"));
  NodeDescriptor node_{.memory_read_gb_per_s = 10.0, .fp32_gflops = 1e9};
};

TEST_F(DecodeTime, OneSequenceIsBoundByReadingWeights) {
  const double seconds = block_decode_s(cost_, {.context = 0, .sequences = 1}, node_);
  EXPECT_DOUBLE_EQ(seconds, static_cast<double>(cost_.block.weight_bytes) / 10e9);
  node_.memory_read_gb_per_s = 20.0;
  EXPECT_DOUBLE_EQ(block_decode_s(cost_, {.context = 0, .sequences = 1}, node_), seconds / 2);
}

TEST_F(DecodeTime, ManySequencesReadWeightsOnceAndTheirOwnCaches) {
  const double one = block_decode_s(cost_, {.context = 100, .sequences = 1}, node_);
  const double four = block_decode_s(cost_, {.context = 100, .sequences = 4}, node_);
  EXPECT_NEAR(four - one, 3 * 50.0 * static_cast<double>(cost_.kv_bytes) / 10e9, 1e-12);
}

TEST_F(DecodeTime, SlowArithmeticBoundsInsteadOfMemory) {
  node_.fp32_gflops = 1.0;
  EXPECT_DOUBLE_EQ(block_decode_s(cost_, {.context = 0, .sequences = 8}, node_), 8 * cost_.block.flops / 1e9);
}

TEST_F(DecodeTime, QuantisedWeightsUseInt8ArithmeticWhereThereIsAny) {
  cost_.weight_type = DType::kQ8_0;
  node_.fp32_gflops = 1.0;
  node_.int8_gops = 2.0;
  EXPECT_DOUBLE_EQ(head_decode_s(cost_, {.context = 0, .sequences = 1}, node_), cost_.head.flops / 2e9);
  node_.int8_gops = 0.0;
  EXPECT_DOUBLE_EQ(head_decode_s(cost_, {.context = 0, .sequences = 1}, node_), cost_.head.flops / 1e9);
}

TEST_F(DecodeTime, NodeNeverMeasuredTakesForever) {
  EXPECT_TRUE(std::isinf(block_decode_s(cost_, {.context = 0, .sequences = 1}, NodeDescriptor{})));
}

TEST_F(DecodeTime, EmbeddingIsNothingBesideABlock) {
  const Load load{.context = 0, .sequences = 1};
  EXPECT_GT(embedding_decode_s(cost_, load, node_), 0.0);
  EXPECT_LT(embedding_decode_s(cost_, load, node_), 1e-3 * block_decode_s(cost_, load, node_));
}

}  // namespace
}  // namespace butterfly
