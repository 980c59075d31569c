// One block per family against PyTorch (tools/make_model_golden.py): configuration alone makes the difference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "butterfly/base/json.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/model/inference/block.h"

namespace butterfly {
namespace {

std::string golden(const std::string& name) {
  return std::string(BUTTERFLY_SOURCE_DIR "/tests/golden/") + name;
}

std::string golden_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// The tensors of a golden file as a source of weights for layer 0.
class GoldenSource final : public WeightSource {
 public:
  explicit GoldenSource(const std::string& family)
      : index_(parse_json(golden_text(golden("block_" + family + ".json")))),
        data_(golden_text(golden("block_" + family + ".bin"))) {
    for (const auto& tensor : index_["tensors"]) {
      const auto& shape = tensor["shape"];
      WeightView view;
      view.rows = shape.size() == 2 ? shape[0].get<std::int64_t>() : 1;
      view.cols = shape.back().get<std::int64_t>();
      view.bytes = as_bytes(
          std::string_view(data_).substr(tensor["offset"], static_cast<std::size_t>(view.rows * view.cols) * 4));
      views_["blk.0." + tensor["name"].get<std::string>()] = view;
    }
  }

  const nlohmann::json& config() const { return index_["config"]; }
  int tokens() const { return index_["tokens"]; }
  std::vector<float> floats(const std::string& name) const {
    const WeightView& view = views_.at("blk.0." + name);
    std::vector<float> values(view.bytes.size() / 4);
    std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
    return values;
  }

  std::vector<WeightInfo> list() const override { return {}; }
  Result<WeightView> find(const std::string& name) const override {
    if (!contains(name)) return make_error(ErrorCode::kNotFound, "{} is not in the golden file", name);
    return views_.at(name);
  }
  bool contains(const std::string& name) const override { return views_.contains(name); }
  std::string description() const override { return "golden block"; }

 private:
  nlohmann::json index_;
  std::string data_;
  std::map<std::string, WeightView> views_;
};

ModelConfig config_of(const nlohmann::json& j) {
  ModelConfig c;
  c.layers = 1;
  c.model_dim = j["model_dim"];
  c.heads = j["heads"];
  c.kv_heads = j["kv_heads"];
  c.head_dim = j["head_dim"];
  c.ff_dim = j["ff_dim"];
  c.vocab = 8;
  c.context = 64;
  c.norm = j["norm"] == "rms" ? NormKind::kRms : NormKind::kLayer;
  c.norm_epsilon = j["norm_epsilon"];
  c.mlp = j["mlp"] == "gated" ? MlpKind::kGated : MlpKind::kPlain;
  c.activation = j["activation"] == "silu" ? Activation::kSilu : Activation::kGeluTanh;
  c.position = j["rope_pairs"] == "none" ? PositionKind::kLearned : PositionKind::kRope;
  c.rope.pairs = j["rope_pairs"] == "halves" ? RopePairs::kHalves : RopePairs::kAdjacent;
  c.rope.base = j["rope_base"];
  c.rope.dim = j["rope_dim"];
  c.qkv_bias = j["qkv_bias"];
  c.attention_output_bias = j["attention_output_bias"];
  c.mlp_bias = j["mlp_bias"];
  c.norm_bias = j["norm_bias"];
  c.attention_sinks = j["sinks"];
  if (const int window = j["window"]; window > 0) c.windows = {window};
  return c;
}

class GoldenBlock : public testing::TestWithParam<const char*> {};

/// The block's output for the golden input, in runs of `chunk` rows.
std::vector<float> run_block(const GoldenSource& source, const ModelConfig& config, Isa isa, int chunk) {
  ThreadTeam team(2);
  Arena arena(Pool::create());
  const Compute compute{&kernels_for(isa), &team, &arena};
  auto block = Block::load(config, 0, source, team);
  EXPECT_TRUE(block) << block.error().message;
  KvCache cache({.layers = 1, .kv_heads = config.kv_heads, .head_dim = config.head_dim, .type = DType::kF32});
  const auto frequencies =
      config.position == PositionKind::kRope ? rotary_frequencies(config.rope) : std::vector<double>{};
  std::vector<float> x = source.floats("input");
  for (int at = 0; at < source.tokens(); at += chunk) {
    const int rows = std::min(chunk, source.tokens() - at);
    const Batch batch{{{SequenceId(0), at, rows, rows}}};
    EXPECT_TRUE(cache.reserve(SequenceId(0), at + rows));
    const auto rotary = rotary_rows(compute, frequencies, batch);
    EXPECT_TRUE(block->forward(compute, batch, *rotary, 0, cache, x.data() + at * config.model_dim));
  }
  return x;
}

TEST_P(GoldenBlock, MatchesPyTorchWithinFloatRounding) {
  const GoldenSource source(GetParam());
  const ModelConfig config = config_of(source.config());
  const auto y = run_block(source, config, Isa::kReference, source.tokens());
  const auto expected = source.floats("output");
  ASSERT_EQ(y.size(), expected.size());
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 2e-5f * (1 + std::fabs(expected[i]))) << i;
}

TEST_P(GoldenBlock, ChunksAndInstructionSetsGiveTheSameBits) {
  const GoldenSource source(GetParam());
  const ModelConfig config = config_of(source.config());
  const auto expected = run_block(source, config, Isa::kReference, source.tokens());
  for (const Isa isa : supported_isas()) {
    for (const int chunk : {1, 2, 5}) {
      const auto y = run_block(source, config, isa, chunk);
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0) << to_string(isa) << " " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenBlock, testing::Values("llama", "qwen2", "gpt2", "sinks"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(GoldenBlockErrors, AMemberWithoutHeadsNeedsNoSinks) {
  const GoldenSource source("sinks");
  ModelConfig config = config_of(source.config());
  const auto parts = expected_parts(config, {.first_layer = 0, .last_layer = 1}, {16, 32});
  const auto sinks =
      std::ranges::find(parts, "blk.0.attn_sinks.weight", [](const ExpectedPart& part) { return part.whole.name; });
  ASSERT_NE(sinks, parts.end());
  EXPECT_EQ(sinks->part.of_cols, shard_of(config, {16, 32}).heads) << "the sinks of its own heads";
  for (const ExpectedPart& part : expected_parts(config, {.first_layer = 0, .last_layer = 1}, {0, 1})) {
    EXPECT_NE(part.whole.name, "blk.0.attn_sinks.weight");
  }
}

TEST(GoldenBlockErrors, AMissingWeightIsNamed) {
  const GoldenSource source("llama");
  ModelConfig config = config_of(source.config());
  config.qkv_bias = true;
  ThreadTeam team(1);
  const auto block = Block::load(config, 0, source, team);
  ASSERT_FALSE(block);
  EXPECT_NE(block.error().message.find("blk.0.attn_q.bias"), std::string::npos) << block.error().message;
}

TEST(GoldenRotary, FrequenciesMatchEveryScaling) {
  const auto cases = parse_json(golden_text(golden("block_rope.json")));
  for (const auto& c : cases["cases"]) {
    RopeConfig rope;
    rope.base = c["base"];
    rope.dim = c["dim"];
    rope.factor = c["factor"];
    const std::string scaling = c["scaling"];
    if (scaling == "linear") rope.scaling = RopeConfig::Scaling::kLinear;
    if (scaling == "llama3") {
      rope.scaling = RopeConfig::Scaling::kLlama3;
      rope.low_freq_factor = c["low_freq_factor"];
      rope.high_freq_factor = c["high_freq_factor"];
      rope.original_context = c["original_context"];
    }
    const auto frequencies = rotary_frequencies(rope);
    ASSERT_EQ(frequencies.size(), c["frequencies"].size());
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double expected = c["frequencies"][i];
      EXPECT_NEAR(frequencies[i], expected, 1e-13 * expected) << scaling << " " << i;
    }
  }
}

TEST(ExactMath, AgreesWithTheStandardLibraryToTheLastPlaces) {
  for (double x = 1e-6; x < 1e7; x *= 1.37) {
    EXPECT_NEAR(exact::log(x), std::log(x), 4e-16 * (1 + std::fabs(std::log(x)))) << x;
    double sin = 0;
    double cos = 0;
    exact::sincos(x, &sin, &cos);
    EXPECT_NEAR(sin, std::sin(x), 4e-16) << x;
    EXPECT_NEAR(cos, std::cos(x), 4e-16) << x;
  }
  for (double x = -300; x < 300; x += 0.71) EXPECT_NEAR(exact::exp(x) / std::exp(x), 1.0, 1e-15) << x;
  std::vector<double> many{-0.0, 0.0, -700, 700, 1e-300};
  for (double x = -699; x < 699; x += 0.37) many.push_back(x);
  const std::vector<double> of = many;
  exact::exp(std::span(many));
  for (std::size_t i = 0; i < of.size(); ++i) EXPECT_EQ(many[i], exact::exp(of[i])) << of[i];
}

}  // namespace
}  // namespace butterfly
