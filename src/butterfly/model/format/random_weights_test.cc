#include "butterfly/model/core/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "butterfly/model/format/model_files_test.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

std::vector<float> decode(const WeightView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.rows * view.cols));
  decode_row(view.type, view.bytes, values);
  return values;
}

TEST(RandomWeights, MatricesOfEveryTypeHaveTheDeviationThatKeepsActivationsInScale) {
  ModelConfig config = small_config();
  config.ff_dim = 512;
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    const auto checkpoint = random_checkpoint(config, {.seed = 5, .type = type});
    ASSERT_TRUE(checkpoint);
    const auto values = decode(*checkpoint->weights->find("blk.0.ffn_down.weight"));
    double sum = 0;
    double squares = 0;
    for (float value : values) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double count = static_cast<double>(values.size());
    const double deviation = 1 / std::sqrt(512.0);
    EXPECT_NEAR(sum / count, 0, 4 * deviation / std::sqrt(count)) << to_string(type);
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 0.03 * deviation) << to_string(type);
  }
}

TEST(RandomWeights, SeedAndNameDecideEveryByte) {
  const auto a = *random_checkpoint(small_config(), {.seed = 1});
  const auto again = *random_checkpoint(small_config(), {.seed = 1});
  const auto other = *random_checkpoint(small_config(), {.seed = 2});
  expect_same_weights(*a.weights, *again.weights);
  const std::string q = "blk.0.attn_q.weight";
  EXPECT_NE(as_text(a.weights->find(q)->bytes), as_text(other.weights->find(q)->bytes));
  EXPECT_NE(as_text(a.weights->find(q)->bytes), as_text(a.weights->find("blk.1.attn_q.weight")->bytes));
  const auto values = decode(*a.weights->find(q));
  EXPECT_EQ(std::set<float>(values.begin(), values.end()).size(), values.size());
  for (float norm : decode(*a.weights->find("blk.0.attn_norm.weight"))) EXPECT_EQ(norm, 1.0f);
}

TEST(RandomWeights, EveryNamedShapeIsValidAndItsPiecesDiffer) {
  for (const std::string& name : named_configs()) {
    const auto config = named_config(name);
    ASSERT_TRUE(config);
    EXPECT_TRUE(validate(*config)) << name;
    const auto checkpoint = random_checkpoint(*config, {.type = DType::kQ4_0});
    ASSERT_TRUE(checkpoint) << name;
    EXPECT_EQ(checkpoint->vocabulary.size(), config->vocab);
    const auto& pieces = checkpoint->vocabulary.pieces;
    EXPECT_EQ(std::set<std::string>(pieces.begin(), pieces.end()).size(), pieces.size());
  }
}

}  // namespace
}  // namespace butterfly
