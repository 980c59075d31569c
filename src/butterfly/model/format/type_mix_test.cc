#include "butterfly/model/format/type_mix.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "butterfly/model/format/gguf/gguf.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {
namespace {

/// Rows of 256 and 512 elements; 16 layers, so that an eighth is two of them.
ModelConfig mixed_config() {
  ModelConfig config = small_config();
  config.layers = 16;
  config.model_dim = 256;
  config.head_dim = 64;
  config.rope.dim = 64;
  config.ff_dim = 512;
  return config;
}

std::string block(int layer, const char* stem) {
  return fmt::format("blk.{}.{}.weight", layer, stem);
}

TEST(TypeMix, ValuesAndMlpOutputsOfTheOuterEighthsAndEveryThirdLayerAreFiner) {
  ModelConfig config = *named_config("mistral-7b");
  // As llama.cpp's quantiser chose for its files of that model.
  const std::set<int> finer{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};
  for (const TypeMix mix : {TypeMix::kQ4KM, TypeMix::kQ5KM}) {
    for (int layer = 0; layer < 32; ++layer) {
      const DType expected = finer.contains(layer) ? DType::kQ6_K : main_type(mix);
      EXPECT_EQ(type_in_mix(mix, config, block(layer, "attn_v"), 4096), expected) << layer;
      EXPECT_EQ(type_in_mix(mix, config, block(layer, "ffn_down"), 14336), expected) << layer;
      for (const char* stem : {"attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"}) {
        EXPECT_EQ(type_in_mix(mix, config, block(layer, stem), 4096), main_type(mix)) << stem;
      }
    }
    EXPECT_EQ(type_in_mix(mix, config, "output.weight", 4096), DType::kQ6_K);
    EXPECT_EQ(type_in_mix(mix, config, "token_embd.weight", 4096), main_type(mix));
    config.tied_head = true;
    EXPECT_EQ(type_in_mix(mix, config, "token_embd.weight", 4096), DType::kQ6_K) << "the head's matrix";
    config.tied_head = false;
  }
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(9, "attn_qkv"), 4096), DType::kQ6_K) << "it has the values";
  EXPECT_EQ(type_in_mix(TypeMix::kQ5KM, config, block(8, "attn_qkv"), 4096), DType::kQ5_K);
}

TEST(TypeMix, NamesAndNumbersAreThoseOfTheTable) {
  for (const TypeMix mix : all_type_mixes()) EXPECT_EQ(parse_type_mix(to_string(mix)), mix) << to_string(mix);
  EXPECT_FALSE(parse_type_mix("q4_k"));
  EXPECT_EQ(main_type(TypeMix::kIQ4XS), DType::kIQ4_XS);
  EXPECT_EQ(file_type_number(TypeMix::kIQ4XS), 30u);
  EXPECT_EQ(file_type_number(TypeMix::kQ3KL), 13u);
}

/// As llama.cpp chooses for a model of 32 layers with four heads to a value.
TEST(TypeMix, EachMixHasItsFinerMatrices) {
  const ModelConfig config = *named_config("mistral-7b");
  struct Case {
    TypeMix mix;
    DType values, output, down, head;
  };
  for (const Case& c : {
           Case{TypeMix::kQ2K, DType::kQ4_K, DType::kQ3_K, DType::kQ3_K, DType::kQ6_K},
           Case{TypeMix::kQ3KS, DType::kQ3_K, DType::kQ3_K, DType::kQ3_K, DType::kQ6_K},
           Case{TypeMix::kQ3KM, DType::kQ5_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K},
           Case{TypeMix::kQ3KL, DType::kQ5_K, DType::kQ5_K, DType::kQ5_K, DType::kQ6_K},
           Case{TypeMix::kQ4KS, DType::kQ5_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K},
           Case{TypeMix::kQ5KS, DType::kQ5_K, DType::kQ5_K, DType::kQ5_K, DType::kQ6_K},
           Case{TypeMix::kQ6K, DType::kQ6_K, DType::kQ6_K, DType::kQ6_K, DType::kQ6_K},
           Case{TypeMix::kIQ4NL, DType::kQ5_K, DType::kIQ4_NL, DType::kQ5_K, DType::kQ6_K},
           Case{TypeMix::kIQ4XS, DType::kQ5_K, DType::kIQ4_XS, DType::kQ5_K, DType::kQ6_K},
           Case{TypeMix::kQ4_0, DType::kQ4_0, DType::kQ4_0, DType::kQ4_0, DType::kQ6_K},
           Case{TypeMix::kQ8_0, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0},
       }) {
    EXPECT_EQ(type_in_mix(c.mix, config, block(1, "attn_v"), 4096), c.values) << to_string(c.mix);
    EXPECT_EQ(type_in_mix(c.mix, config, block(1, "attn_output"), 4096), c.output) << to_string(c.mix);
    EXPECT_EQ(type_in_mix(c.mix, config, block(1, "ffn_down"), 14336), c.down) << to_string(c.mix);
    EXPECT_EQ(type_in_mix(c.mix, config, "output.weight", 4096), c.head) << to_string(c.mix);
    EXPECT_EQ(type_in_mix(c.mix, config, block(1, "ffn_up"), 4096), main_type(c.mix)) << to_string(c.mix);
  }
  EXPECT_EQ(type_in_mix(TypeMix::kQ3KM, config, block(2, "attn_v"), 4096), DType::kQ4_K);
  EXPECT_EQ(type_in_mix(TypeMix::kQ3KM, config, block(2, "ffn_down"), 14336), DType::kQ4_K);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KS, config, block(4, "ffn_down"), 14336), DType::kQ4_K);
}

TEST(TypeMix, AttentionOfEightExpertsIsStoredFinerThanThey) {
  ModelConfig config = *named_config("mistral-7b");
  config.moe.experts = 8;
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(8, "attn_k"), 4096), DType::kQ8_0);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(8, "attn_v"), 4096), DType::kQ8_0);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(8, "attn_output"), 4096), DType::kQ5_K);
  EXPECT_EQ(type_in_mix(TypeMix::kQ5KM, config, block(8, "attn_output"), 4096), DType::kQ5_K);
  EXPECT_EQ(type_in_mix(TypeMix::kQ2K, config, block(8, "attn_output"), 4096), DType::kQ5_K);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(9, "ffn_down_exps"), 4096), DType::kQ6_K);
  EXPECT_EQ(type_in_mix(TypeMix::kMXFP4, config, block(9, "ffn_down_exps"), 4096), DType::kMXFP4);
  EXPECT_EQ(type_in_mix(TypeMix::kMXFP4, config, block(9, "attn_q"), 4096), DType::kQ8_0);
}

TEST(TypeMix, RowsOfOtherWidthsTakeTheNextTypeOfBlocksOf32) {
  const ModelConfig config = *named_config("qwen2-0.5b");  // rows of 896
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(4, "attn_q"), 896), DType::kQ5_0);
  EXPECT_EQ(type_in_mix(TypeMix::kQ5KM, config, block(4, "attn_q"), 896), DType::kQ5_1);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(0, "attn_v"), 896), DType::kQ8_0);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, "token_embd.weight", 896), DType::kQ8_0);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4KM, config, block(4, "attn_q"), 900), DType::kF16);
  EXPECT_EQ(type_in_mix(TypeMix::kQ2K, config, block(4, "attn_q"), 896), DType::kQ4_0);
  EXPECT_EQ(type_in_mix(TypeMix::kIQ4XS, config, block(4, "attn_q"), 896), DType::kIQ4_NL);
  EXPECT_EQ(type_in_mix(TypeMix::kQ4_0, config, "token_embd.weight", 896), DType::kQ8_0) << "Q6_K has no such rows";
}

TEST(TypeMix, AFileOfIt) {
  const TempDir dir;
  const Checkpoint checkpoint = *random_checkpoint(mixed_config(), {.seed = 3, .type = DType::kF32});
  const auto report = convert(checkpoint, dir / "model.gguf", {.mix = TypeMix::kQ4KM});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->stored_as_f16.empty());
  const auto opened = open_checkpoint(dir / "model.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->config.weight_type, DType::kQ4_K);
  std::map<DType, int> count;
  for (const WeightInfo& info : opened->weights->list()) {
    if (info.rows > 1) ++count[info.type];
  }
  // 8 layers are sensitive: 0, 1, 4, 7, 10, 13, 14, 15.
  EXPECT_EQ(count, (std::map<DType, int>{{DType::kQ6_K, 2 * 8 + 1}, {DType::kQ4_K, 16 * 7 + 2 - 2 * 8 - 1}}));
  const std::string bytes = read_file(dir / "model.gguf");
  const auto file = GgufFile::parse(as_bytes(bytes), "file");
  EXPECT_EQ(file->get_int("general.file_type")->value(), 15) << "mostly Q4_K - Medium";
}

}  // namespace
}  // namespace butterfly
