#include "butterfly/model/format/gguf/gguf_latent.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "butterfly/model/core/latent_parts.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

/// Heads of 12 elements that are not rotated and 8 that are, values of 16, a latent of 32.
Checkpoint latent_checkpoint() {
  ModelConfig config = small_config();
  config.architecture = "deepseek2";
  config.kv_heads = 1;
  config.head_dim = 20;
  config.rope.dim = 8;
  config.latent = {.dim = 32, .query_rank = 24, .value_dim = 16};
  Checkpoint checkpoint = *random_checkpoint(config, {.seed = 4, .type = DType::kF32});
  checkpoint.vocabulary = small_vocabulary();
  return checkpoint;
}

constexpr std::int64_t kPlain = 12, kValues = 16, kLatent = 32;

/// attn_kv_b of a layer: for each head the rows that make keys, then those that make values.
std::vector<float> both_of(const Checkpoint& model, int layer) {
  const WeightView keys = *model.weights->find(fmt::format("blk.{}.attn_k_b.weight", layer));
  const WeightView values = *model.weights->find(fmt::format("blk.{}.attn_v_b.weight", layer));
  std::vector<float> both;
  for (std::int64_t head = 0; head < model.config.heads; ++head) {
    const auto at = [](const WeightView& view, std::int64_t row, std::int64_t col) {
      float value = 0;
      std::memcpy(&value, view.bytes.data() + (row * view.cols + col) * 4, 4);
      return value;
    };
    for (std::int64_t c = 0; c < kPlain; ++c) {
      for (std::int64_t r = 0; r < kLatent; ++r) both.push_back(at(keys, head * kLatent + r, c));
    }
    for (std::int64_t v = 0; v < kValues; ++v) {
      for (std::int64_t r = 0; r < kLatent; ++r) both.push_back(at(values, head * kValues + v, r));
    }
  }
  return both;
}

/// As converters wrote such models before: one tensor for keys and values, lengths of a head.
void write_older_file(const Checkpoint& model, const std::string& path, DType both_type) {
  auto writer = GgufWriter::create(path);
  ASSERT_TRUE(writer);
  writer->add_string("general.architecture", "deepseek2");
  const ModelConfig& c = model.config;
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, int>>{{"block_count", c.layers},
                                                {"embedding_length", c.model_dim},
                                                {"feed_forward_length", c.ff_dim},
                                                {"context_length", c.context},
                                                {"vocab_size", c.vocab},
                                                {"attention.head_count", c.heads},
                                                {"attention.head_count_kv", c.heads},
                                                {"attention.key_length", c.head_dim},
                                                {"attention.value_length", kValues},
                                                {"attention.kv_lora_rank", kLatent},
                                                {"attention.q_lora_rank", 24},
                                                {"rope.dimension_count", c.rope.dim},
                                                {"rope.scaling.original_context_length", 8}}) {
    writer->add_integer("deepseek2." + std::string(key), static_cast<std::uint32_t>(value));
  }
  writer->add_string("deepseek2.rope.scaling.type", "yarn");
  writer->add_float("deepseek2.rope.scaling.factor", 40.0f);
  writer->add_float("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
  writer->add_float("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
  std::vector<std::vector<std::byte>> data;
  for (const WeightInfo& info : model.weights->list()) {
    if (info.name.ends_with("attn_k_b.weight")) continue;
    const bool both = info.name.ends_with("attn_v_b.weight");
    if (!both) {
      const WeightView view = *model.weights->find(info.name);
      ASSERT_TRUE(writer->declare({.name = info.name, .type = info.type, .rows = info.rows, .cols = info.cols}));
      data.emplace_back(view.bytes.begin(), view.bytes.end());
      continue;
    }
    const std::vector<float> values = both_of(model, info.name[4] - '0');
    const std::string name = info.name.substr(0, 6) + "attn_kv_b.weight";
    ASSERT_TRUE(writer->declare({.name = name, .type = both_type, .rows = latent_rows(c), .cols = kLatent}));
    data.emplace_back(*row_bytes(both_type, values.size()));
    encode_row(both_type, values, data.back());
  }
  ASSERT_TRUE(writer->write_header());
  for (const auto& bytes : data) ASSERT_TRUE(writer->write(bytes));
  ASSERT_TRUE(writer->finish());
}

TEST(GgufLatent, FilesHaveTensorsOfThreeDimensionsAndLengthsOfTheCache) {
  const TempDir dir;
  const Checkpoint model = latent_checkpoint();
  ASSERT_TRUE(convert(model, dir / "m.gguf", {}));
  const auto opened = open_checkpoint(dir / "m.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  expect_same_weights(*model.weights, *opened->weights);
  EXPECT_EQ(opened->config.head_dim, 20);
  EXPECT_EQ(opened->config.latent.query_rank, 24);
  EXPECT_EQ(opened->config.mixed_dim(), 64);
  const std::string bytes = read_file(dir / "m.gguf");
  const auto file = GgufFile::parse(as_bytes(bytes), "file");
  const GgufTensor* keys = file->find_tensor("blk.1.attn_k_b.weight");
  ASSERT_NE(keys, nullptr);
  EXPECT_EQ(keys->dims, 3);
  EXPECT_EQ(keys->shape, (std::array<std::int64_t, 4>{kPlain, kLatent, 4, 1}));
  EXPECT_EQ(file->get_int("deepseek2.attention.key_length")->value(), 40);
  EXPECT_EQ(file->get_int("deepseek2.attention.head_count_kv")->value(), 1);
}

TEST(GgufLatent, OneTensorForKeysAndValuesIsTakenApart) {
  const TempDir dir;
  const Checkpoint model = latent_checkpoint();
  write_older_file(model, dir / "m.gguf", DType::kF32);
  const auto opened = open_checkpoint(dir / "m.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  expect_same_weights(*model.weights, *opened->weights);
  EXPECT_EQ(opened->weights->list().size(), model.weights->list().size());
  EXPECT_EQ(opened->config.cached_key_dim(), 40);
  // Yarn: the magnitude is that of the scores, and rotated elements have none of their own.
  const double scale = 1.0 + 0.0707 * std::log(40.0);
  EXPECT_NEAR(opened->config.attention_scale, scale * scale / std::sqrt(20.0), 1e-6);
  EXPECT_EQ(opened->config.rope.magnitude, 1.0f);
}

TEST(GgufLatent, ItsKeysAreF32WhereItIsQuantised) {
  const TempDir dir;
  const Checkpoint model = latent_checkpoint();
  write_older_file(model, dir / "m.gguf", DType::kQ8_0);
  const auto opened = open_checkpoint(dir / "m.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  const std::vector<float> both = both_of(model, 1);
  std::vector<std::byte> blocks(*row_bytes(DType::kQ8_0, both.size()));
  std::vector<float> rounded(both.size());
  encode_row(DType::kQ8_0, both, blocks);
  decode_row(DType::kQ8_0, blocks, rounded);
  const WeightView keys = *opened->weights->find("blk.1.attn_k_b.weight");
  EXPECT_EQ(keys.type, DType::kF32);
  const std::int64_t row = 2 * kLatent + 5;  // of the third head
  for (std::int64_t c = 0; c < kPlain; ++c) {
    float value = 0;
    std::memcpy(&value, keys.bytes.data() + (row * kPlain + c) * 4, 4);
    EXPECT_EQ(value, rounded[static_cast<std::size_t>((2 * (kPlain + kValues) + c) * kLatent + 5)]);
  }
  EXPECT_EQ(opened->weights->find("blk.1.attn_v_b.weight")->type, DType::kQ8_0);
  for (const WeightInfo& info : opened->weights->list()) {
    const auto view = opened->weights->find(info.name);
    ASSERT_TRUE(view) << info.name;
    EXPECT_EQ(view->type, info.type) << info.name;
    EXPECT_EQ(view->bytes.size(), info.bytes) << info.name;
  }
}

}  // namespace
}  // namespace butterfly
