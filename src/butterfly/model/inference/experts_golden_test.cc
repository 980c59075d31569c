// Experts alone: gpt-oss's against PyTorch (tools/make_experts_golden.py), from stacked tensors, and what of a step
// their result may depend on.
#include "butterfly/model/inference/experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/hugging_face/hugging_face_weights.h"

namespace butterfly {
namespace {

ModelConfig gpt_oss() {
  ModelConfig config;
  config.architecture = "gpt-oss";
  config.layers = 1;
  config.model_dim = 32;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = config.rope.dim = 16;
  config.rope.pairs = RopePairs::kHalves;
  config.ff_dim = 48;
  config.vocab = 16;
  config.context = 64;
  config.qkv_bias = config.attention_output_bias = true;
  config.moe = {.experts = 6,
                .experts_used = 2,
                .ff_dim = 48,
                .scores = MoeConfig::Scores::kSoftmaxOfChosen,
                .router_bias = true,
                .expert_bias = true,
                .swiglu_limit = 2.0f};
  return config;
}

Result<std::vector<float>> results_of(const Experts& experts, std::span<const float> input, std::int64_t dim, Isa isa,
                                      int threads) {
  ThreadTeam team(threads);
  Arena arena(Pool::shared());
  const Compute compute{.kernels = &kernels_for(isa), .team = &team, .arena = &arena};
  std::vector<float> x(input.begin(), input.end());
  std::vector<float> y(x.size());
  BF_TRY(experts.forward(compute, static_cast<std::int64_t>(x.size()) / dim, x.data(), y.data()));
  return y;
}

TEST(GoldenExperts, OfGptOssAreThoseOfPyTorch) {
  const std::string folder = BUTTERFLY_SOURCE_DIR "/tests/golden/gpt_oss_experts/";
  auto mapping = MappedFile::open(folder + "model.safetensors").value();
  auto file = SafetensorsFile::parse(mapping->bytes(), "gpt-oss").value();
  std::vector<HuggingFaceShard> shards;
  shards.push_back({.mapping = std::move(mapping), .file = std::move(file)});
  const ModelConfig config = gpt_oss();
  const auto weights = make_hugging_face_weights(std::move(shards), config, "gpt-oss");
  ASSERT_TRUE(weights) << weights.error().message;
  ThreadTeam team(1);
  const auto experts = Experts::load(config, 0, **weights, team, shard_of(config, {}));
  ASSERT_TRUE(experts) << experts.error().message;

  std::ifstream in(folder + "mlp.f32", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  const std::size_t half = values.size() / 2;
  ASSERT_EQ(half % 32, 0u);
  const auto y = results_of(*experts, std::span(values).first(half), 32, Isa::kReference, 1);
  ASSERT_TRUE(y) << y.error().message;
  float worst = 0, largest = 0;
  for (std::size_t i = 0; i < half; ++i) {
    worst = std::max(worst, std::fabs((*y)[i] - values[half + i]));
    largest = std::max(largest, std::fabs(values[half + i]));
  }
  EXPECT_GT(largest, 1.0f);
  EXPECT_LE(worst / largest, 1e-5f);
  std::printf("largest difference %.2g of the largest result\n", static_cast<double>(worst / largest));
}

class ExpertsOfType : public testing::TestWithParam<DType> {};

TEST_P(ExpertsOfType, ARowsResultDependsOnThatRowAlone) {
  ModelConfig config = gpt_oss();
  config.model_dim = 64;
  config.moe.experts = 11;
  config.moe.experts_used = 4;
  config.moe.ff_dim = 96;
  config.moe.shared_ff_dim = 64;
  config.moe.shared_gate = true;
  const Checkpoint checkpoint = random_checkpoint(config, {.seed = 7, .type = GetParam()}).value();
  ThreadTeam team(1);
  const Experts experts = Experts::load(config, 0, *checkpoint.weights, team, shard_of(config, {})).value();
  constexpr std::size_t kRows = 19;
  std::vector<float> x(kRows * 64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 1013));
  const auto all = results_of(experts, x, 64, Isa::kReference, 1).value();
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(results_of(experts, x, 64, isa, 3).value(), all) << to_string(isa);
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto one = results_of(experts, std::span(x).subspan(row * 64, 64), 64, isa, 2).value();
      EXPECT_EQ(std::memcmp(one.data(), all.data() + row * 64, 64 * sizeof(float)), 0) << to_string(isa) << " " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertsOfType, testing::Values(DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

}  // namespace
}  // namespace butterfly
