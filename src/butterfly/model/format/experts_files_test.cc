// Experts on their way through configuration, GGUF files and back.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "butterfly/model/core/config_json.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/convert.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/format/safetensors/safetensors.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;
using Scores = MoeConfig::Scores;

ModelConfig with_experts(const std::string& architecture, const MoeConfig& moe) {
  ModelConfig config;
  config.architecture = architecture;
  config.name = "experts";
  config.layers = 3;
  config.model_dim = 64;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = config.rope.dim = 32;
  config.ff_dim = 96;
  config.vocab = 40;
  config.context = 64;
  config.rope.pairs = architecture == "llama" ? RopePairs::kAdjacent : RopePairs::kHalves;
  if (architecture == "qwen3moe") config.qk_norm = QkNorm::kHead;
  if (architecture == "olmoe") config.qk_norm = QkNorm::kWidth;
  config.moe = moe;
  return config;
}

std::vector<ModelConfig> families() {
  const MoeConfig small{.experts = 5, .experts_used = 2, .ff_dim = 32};
  MoeConfig renormalised = small;
  renormalised.renormalise = true;
  MoeConfig shared = small;
  shared.shared_ff_dim = 96;
  shared.shared_gate = true;
  const MoeConfig glm{.experts = 6,
                      .experts_used = 2,
                      .ff_dim = 32,
                      .layers = {0, 1, 1},
                      .scores = Scores::kSigmoid,
                      .choice_bias = true,
                      .groups = 3,
                      .groups_used = 2,
                      .group_score = MoeConfig::GroupScore::kTwoLargest,
                      .renormalise = true,
                      .renormalise_epsilon = 1e-20f,
                      .weight_scale = 2.5f,
                      .shared_ff_dim = 64};
  return {with_experts("llama", renormalised), with_experts("qwen2moe", shared), with_experts("qwen3moe", renormalised),
          with_experts("olmoe", small), with_experts("glm4moe", glm)};
}

TEST(Experts, SurviveTheWayThroughAFileInEveryType) {
  for (const ModelConfig& config : families()) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kMXFP4, DType::kInt8}) {
      SCOPED_TRACE(config.architecture + " " + std::string(to_string(type)));
      const TempDir dir;
      const Checkpoint original = random_checkpoint(config, {.seed = 4, .type = type}).value();
      const auto report = convert(original, dir / "m.gguf", {});
      ASSERT_TRUE(report) << report.error().message;
      const auto read = open_checkpoint(dir / "m.gguf", {.vocabulary_required = false});
      ASSERT_TRUE(read) << read.error().message;
      EXPECT_TRUE(read->config.moe == original.config.moe);
      EXPECT_EQ(read->config.weight_type, type);
      expect_same_weights(*original.weights, *read->weights);
    }
  }
}

TEST(Experts, TheRouterStaysFineWhereTheRestIsQuantised) {
  const TempDir dir;
  const Checkpoint original = random_checkpoint(families()[0], {.seed = 4, .type = DType::kF16}).value();
  ASSERT_TRUE(convert(original, dir / "m.gguf", {.type = DType::kQ8_0}));
  const auto read = open_checkpoint(dir / "m.gguf", {.vocabulary_required = false});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->weights->find("blk.1.ffn_gate_inp.weight")->type, DType::kF32);
  EXPECT_EQ(read->weights->find("blk.1.ffn_up_exps.4.weight")->type, DType::kQ8_0);
  EXPECT_FALSE(read->weights->find("blk.1.ffn_up_exps.5.weight"));
  EXPECT_FALSE(read->weights->contains("blk.1.ffn_up.weight"));
}

TEST(Experts, WhatAnArchitectureCannotSayIsRefused) {
  const TempDir dir;
  const auto message = [&](const ModelConfig& config) {
    const Checkpoint checkpoint = random_checkpoint(config, {}).value();
    const auto report = convert(checkpoint, dir / "m.gguf", {});
    return report ? std::string() : report.error().message;
  };
  ModelConfig config = families()[0];
  EXPECT_EQ(message(config), "");
  config.moe.renormalise = false;
  EXPECT_THAT(message(config), HasSubstr("a GGUF file of architecture llama cannot have these weights of experts"));
  config = families()[0];
  config.moe.layers = {1, 0, 1};
  EXPECT_THAT(message(config), HasSubstr("cannot have these dense layers"));
  config = families()[0];
  config.moe.expert_bias = true;
  EXPECT_THAT(message(config), HasSubstr("cannot have these biases"));
  config = families()[0];
  config.architecture = "granite";
  EXPECT_THAT(message(config), HasSubstr("architecture granite cannot have experts"));
}

TEST(Experts, ConfigurationsThatContradictThemselvesAreRefused) {
  const ModelConfig good = families().back();
  const auto message = [&](auto change) {
    ModelConfig config = good;
    change(config.moe);
    const Status status = validate(config);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message([](MoeConfig&) {}), "");
  EXPECT_THAT(message([](MoeConfig& m) { m.experts_used = 7; }), HasSubstr("uses is 7, expected 1 to 6"));
  EXPECT_THAT(message([](MoeConfig& m) { m.experts = 1; }), HasSubstr("experts is 1, expected 2 to 4096"));
  EXPECT_THAT(message([](MoeConfig& m) { m.groups = 4; }), HasSubstr("6 experts in 4 groups"));
  EXPECT_THAT(message([](MoeConfig& m) { m.groups_used = 4; }), HasSubstr("is 4, expected 1 to 3"));
  EXPECT_THAT(message([](MoeConfig& m) { m.experts_used = 5; }), HasSubstr("5 experts a token from 2 groups of 2"));
  EXPECT_THAT(message([](MoeConfig& m) { m.groups = 6; }), HasSubstr("groups of 1 expert"));
  EXPECT_THAT(message([](MoeConfig& m) { m.layers = {0, 1}; }), HasSubstr("2 kinds of MLP for 3 layers"));
  EXPECT_THAT(message([](MoeConfig& m) { m.layers = {0, 1, 2}; }), HasSubstr("is 2, expected 0 to 1"));
  EXPECT_THAT(message([](MoeConfig& m) { m.weight_scale = 0; }), HasSubstr("weights is 0, expected a positive"));
  EXPECT_THAT(message([](MoeConfig& m) {
                m.shared_gate = true;
                m.shared_ff_dim = 0;
              }),
              HasSubstr("no shared expert"));
}

TEST(Experts, AreToldByAModelThatHasThem) {
  for (const ModelConfig& config : families()) EXPECT_THAT(to_json(config), HasSubstr("\"experts\""));
  EXPECT_EQ(to_json(*named_config("butterfly-demo")).find("expert"), std::string::npos);
}

/// A safetensors file with the matrices of a layer's experts behind one another, gate before up, as some are saved.
void write_stacked(const SafetensorsFile& apart, const std::string& path) {
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::string>> tensors;  // shape and bytes
  for (const auto& [name, entry] : apart.entries()) {
    const std::size_t at = name.find(".experts.");
    const std::string bytes(as_text(entry.bytes));
    if (at == std::string::npos) {
      tensors[name] = {entry.shape, bytes};
      continue;
    }
    const bool down = name.ends_with("down_proj.weight");
    if (!down && !name.ends_with("gate_proj.weight")) continue;
    const std::string prefix = name.substr(0, at);
    auto& [shape, all] = tensors[prefix + (down ? ".experts.down_proj" : ".experts.gate_up_proj")];
    if (!shape.empty()) continue;
    for (int expert = 0;; ++expert) {
      const std::string one = fmt::format("{}.experts.{}.", prefix, expert);
      const auto found = apart.entries().find(one + (down ? "down_proj.weight" : "gate_proj.weight"));
      if (found == apart.entries().end()) break;
      all += as_text(found->second.bytes);
      if (!down) all += as_text(apart.entries().at(one + "up_proj.weight").bytes);
      shape = {expert + 1, found->second.shape[0] * (down ? 1 : 2), found->second.shape[1]};
    }
  }
  std::string header, data;
  for (const auto& [name, tensor] : tensors) {
    header += fmt::format(R"({}"{}": {{"dtype": "F32", "shape": [{}], "data_offsets": [{}, {}]}})",
                          header.empty() ? "{" : ", ", name, fmt::join(tensor.first, ", "), data.size(),
                          data.size() + tensor.second.size());
    data += tensor.second;
  }
  header += "}";
  const std::uint64_t size = header.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data);
}

TEST(Experts, AreFoundInStackedTensorsToo) {
  for (const char* family : {"qwen3_moe", "glm4_moe"}) {
    const std::string source = std::string(BUTTERFLY_SOURCE_DIR "/tests/golden/families/") + family;
    const TempDir dir;
    const auto mapping = MappedFile::open(source + "/model.safetensors").value();
    write_stacked(SafetensorsFile::parse(mapping->bytes(), family).value(), dir / "model.safetensors");
    write_file(dir / "config.json", read_file(source + "/config.json"));
    const auto apart = open_checkpoint(source, {.vocabulary_required = false});
    const auto stacked = open_checkpoint(dir.path(), {.vocabulary_required = false});
    ASSERT_TRUE(apart) << apart.error().message;
    ASSERT_TRUE(stacked) << stacked.error().message;
    expect_same_weights(*apart->weights, *stacked->weights);
  }
}

TEST(Experts, ATensorOfAnotherNumberOfExpertsIsRefused) {
  const TempDir dir;
  const Checkpoint original = random_checkpoint(families()[0], {}).value();
  ASSERT_TRUE(convert(original, dir / "m.gguf", {}));
  std::string bytes = read_file(dir / "m.gguf");
  const std::string key = "llama.expert_count";
  const std::size_t at = bytes.find(key) + key.size() + 4;
  ASSERT_EQ(bytes[at], 5);
  bytes[at] = 4;
  write_file(dir / "m.gguf", bytes);
  const auto read = open_checkpoint(dir / "m.gguf", {.vocabulary_required = false});
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("ffn_gate_"));
}

}  // namespace
}  // namespace butterfly
