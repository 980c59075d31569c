#include "butterfly/model/format/export_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/json.h"
#include "butterfly/model/core/parameter_weights.h"
#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/format/hugging_face/hugging_face_writer.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/model/training/training_model_test.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Reads tokenizers as this library does: one token for each byte, and "<|end|>".
std::string tokenizer_json() {
  nlohmann::json vocab;
  for (int i = 0; i < 10; ++i) vocab[std::string(1, static_cast<char>('a' + i))] = i;
  return dump_json(nlohmann::json{{"added_tokens", {{{"id", 10}, {"content", "<|end|>"}, {"special", true}}}},
                                  {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                                  {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}});
}

void expect_same_numbers(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(std::tie(a.layers, a.model_dim, a.heads, a.kv_heads, a.head_dim, a.ff_dim, a.vocab, a.context),
            std::tie(b.layers, b.model_dim, b.heads, b.kv_heads, b.head_dim, b.ff_dim, b.vocab, b.context));
  EXPECT_EQ(std::tie(a.norm, a.norm_epsilon, a.activation, a.mlp, a.position, a.weight_type, a.tied_head),
            std::tie(b.norm, b.norm_epsilon, b.activation, b.mlp, b.position, b.weight_type, b.tied_head));
  EXPECT_EQ(std::tie(a.qkv_bias, a.attention_output_bias, a.mlp_bias, a.norm_bias, a.rope.pairs, a.rope.dim),
            std::tie(b.qkv_bias, b.attention_output_bias, b.mlp_bias, b.norm_bias, b.rope.pairs, b.rope.dim));
}

TEST(ExportModel, ADirectoryAndAFileReadBackAsTheModelThatWasWritten) {
  for (const char* architecture : {"llama", "qwen2", "gpt2"}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(architecture) + " " + std::string(to_string(type)));
      const TempDir dir;
      const Checkpoint original = small_checkpoint(architecture, type);
      for (const char* name : {"model", "model.gguf"}) {
        const auto status = export_model(original, dir / name, {});
        ASSERT_TRUE(status) << status.error().message;
        const auto read = open_checkpoint(dir / name);
        ASSERT_TRUE(read) << read.error().message;
        expect_same_numbers(original.config, read->config);
        for (const WeightInfo& info : original.weights->list()) {
          const auto a = original.weights->find(info.name);
          const auto b = read->weights->find(info.name);
          ASSERT_TRUE(b) << b.error().message;
          if (info.name == "position_embd.weight") continue;  // written as F32
          EXPECT_TRUE(as_text(a->bytes) == as_text(b->bytes)) << info.name;
        }
      }
    }
  }
}

TEST(ExportModel, WhatWasTrainedIsContinuedExactly) {
  for (const std::string kind : {"llama", "qwen2", "gpt2"}) {
    const auto trained = make_transformer(transformer_config(kind), {.seq = 8});
    const Checkpoint checkpoint = trained_checkpoint(trained->parameters(), trained->config(), Vocabulary{});
    for (const char* name : {"model", "model.gguf"}) {
      const TempDir dir;
      const auto status = export_model(checkpoint, dir / name, {});
      ASSERT_TRUE(status) << kind << ": " << status.error().message;
      const auto read = open_checkpoint(dir / name);
      ASSERT_TRUE(read) << read.error().message;
      auto continued = TrainableTransformer::create(read->config, {.seq = 8});
      ASSERT_TRUE(continued) << continued.error().message;
      const auto loaded = load_weights(*read->weights, (*continued)->parameters());
      ASSERT_TRUE(loaded) << loaded.error().message;
      EXPECT_EQ((*continued)->parameters().hash(), trained->parameters().hash()) << kind << " " << name;
    }
  }
}

TEST(ExportModel, QuantisedWeightsAreContinuedAsFloats) {
  const Checkpoint checkpoint = small_checkpoint("llama", DType::kQ8_0);
  auto parameters = ParameterSet::create(checkpoint.config);
  ASSERT_TRUE(load_weights(*checkpoint.weights, *parameters));
  const Parameter& down = **parameters->find("blk.1.ffn_down.weight");
  std::vector<float> expected(static_cast<std::size_t>(down.cols));
  const auto view = checkpoint.weights->find(down.name);
  const std::size_t row = *row_bytes(view->type, static_cast<std::uint64_t>(down.cols));
  decode_row(view->type, view->bytes.subspan(3 * row, row), expected);
  const auto values = parameters->weight(down).subspan(3 * expected.size(), expected.size());
  EXPECT_TRUE(std::ranges::equal(values, expected));
}

TEST(ExportModel, WeightsOfAnotherShapeAreRefusedNamingBoth) {
  const Checkpoint checkpoint = small_checkpoint();
  ModelConfig config = checkpoint.config;
  config.ff_dim = 96;
  auto parameters = ParameterSet::create(config);
  EXPECT_THAT(load_weights(*checkpoint.weights, *parameters).error().message,
              HasSubstr("ffn_gate.weight is 64 x 32, the model's configuration says 96 x 32"));
}

TEST(ExportModel, TheTokenizerComesAlong) {
  const TempDir dir;
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.vocabulary = {};
  checkpoint.vocabulary.pieces.assign(11, "a");
  checkpoint.vocabulary.pieces[10] = "<|end|>";
  checkpoint.vocabulary.bos = checkpoint.vocabulary.eos = TokenId{10};
  checkpoint.vocabulary.add_bos = true;
  ASSERT_TRUE(export_model(checkpoint, dir / "model", {.tokenizer_json = tokenizer_json()}));
  const auto read = open_checkpoint(dir / "model");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->vocabulary.size(), 11);
  EXPECT_EQ(read->vocabulary.bos, TokenId{10});
  EXPECT_EQ(read->vocabulary.eos, TokenId{10});
  EXPECT_TRUE(read->vocabulary.add_bos);
}

TEST(ExportModel, RopeScalingSurvivesInADirectory) {
  const TempDir dir;
  Checkpoint checkpoint = small_checkpoint();
  checkpoint.config.rope.scaling = RopeConfig::Scaling::kLlama3;
  checkpoint.config.rope.factor = 4.0f;
  checkpoint.config.rope.original_context = 8;
  ASSERT_TRUE(export_model(checkpoint, dir / "model", {}));
  EXPECT_EQ(open_checkpoint(dir / "model")->config.rope.factors, with_explicit_factors(checkpoint.config.rope).factors);
}

TEST(ExportModel, RefusesWhatADirectoryCannotExpress) {
  const TempDir dir;
  const auto message = [&](const char* architecture, auto change, ExportOptions options = {}) {
    Checkpoint checkpoint = small_checkpoint(architecture);
    change(checkpoint.config);
    const auto status = export_model(checkpoint, dir / "model", options);
    return status ? std::string() : status.error().message;
  };
  const auto nothing = [](ModelConfig&) {};
  EXPECT_THAT(message("llama", nothing, {.type = DType::kQ8_0}), HasSubstr("weights of type q8_0"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.rope.dim = 6; }), HasSubstr("rotated in part"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.rope.factors = {1, 1, 2, 2}; }), HasSubstr("a factor for each"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.qkv_bias = true; }), HasSubstr("these projections alone"));
  EXPECT_THAT(message("gpt2", [](ModelConfig& c) { c.mlp_bias = false; }), HasSubstr("projections without bias"));
  EXPECT_THAT(message("llama", [](ModelConfig& c) { c.architecture = "bart"; }), HasSubstr("is \"bart\""));
  EXPECT_EQ(dir.entries(), 0u);
}

TEST(ExportModel, AValueBeyondTheTypeIsNamedAndNothingIsLeft) {
  const TempDir dir;
  const auto transformer = make_transformer(transformer_config("llama"), {.seq = 8});
  ParameterSet& parameters = transformer->parameters();
  parameters.weight(**parameters.find("blk.1.ffn_up.weight"))[7] = 1e6f;
  const Checkpoint checkpoint = trained_checkpoint(parameters, transformer->config(), Vocabulary{});
  const auto status = export_model(checkpoint, dir / "model", {.type = DType::kF16});
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("model.layers.1.mlp.up_proj.weight has 1000000"));
  EXPECT_TRUE(std::filesystem::is_empty(dir / "model"));
}

}  // namespace
}  // namespace butterfly
