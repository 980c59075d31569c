// Small models and micro-batches that the tests of TrainableTransformer share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "butterfly/model/training/trainable_transformer.h"

namespace butterfly {

struct TransformerInput {
  std::vector<TokenId> tokens{};
  std::vector<TokenId> targets{};
};

/// Different ids at every place; the third target of every eight is not counted.
inline TransformerInput transformer_input(const ModelConfig& config, const TransformerOptions& options) {
  TransformerInput input;
  for (int i = 0; i < options.micro_batch * options.seq; ++i) {
    input.tokens.emplace_back((i * 7 + i / 5) % config.vocab);
    input.targets.emplace_back(i % 8 == 2 ? -1 : (i * 5 + 3) % config.vocab);
  }
  return input;
}

/// Changes what makes `kind` of a small llama.
inline void specialise(const std::string& kind, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.layers);
  if (kind == "qwen2") config.tied_head = true;
  if (kind == "scaled") {
    config.rope.dim = 6;
    config.rope.scaling = RopeConfig::Scaling::kLlama3;
    config.rope.factor = 4.0f;
    config.rope.original_context = 16;
    config.rope.magnitude = 1.2f;
    config.attention_output_bias = config.mlp_bias = config.qkv_bias = true;
  }
  if (kind == "head_norms") {
    config.qk_norm = QkNorm::kHead;
    config.qkv_bias = true;
    config.windows = {0, 3};
    config.residual_scale = 0.7f;
    config.attention_output_bias = config.mlp_bias = true;
    config.logit_scale = 0.5f;
  }
  if (kind == "output_norms") {
    config.norm_place = NormPlace::kOutput;
    config.qk_norm = QkNorm::kWidth;
  }
  if (kind == "both_norms") {
    config.norm_place = NormPlace::kBoth;
    config.activation = Activation::kGeluTanh;
    config.windows.assign(layers, 4);
    config.ropes = {kLocalRope, kMainRope};
    config.local_rope = config.rope;
    config.local_rope.base = 100.0f;
    config.attention_scale = 0.4f;
    config.attention_cap = 2.0f;
    config.logit_cap = 3.0f;
    config.embedding_scale = 3.0f;
    config.tied_head = true;
  }
  if (kind == "parallel" || kind == "shared_norm") {
    config.norm = NormKind::kLayer;
    config.mlp = MlpKind::kPlain;
    config.activation = Activation::kGeluErf;
    config.parallel_block = true;
    config.shared_norm = kind == "shared_norm";
    config.norm_bias = config.qkv_bias = config.attention_output_bias = config.mlp_bias = config.head_bias = true;
    config.rope.dim = 4;
    config.ropes = {kMainRope, kNoRope};
    if (kind == "shared_norm") config.residual_scale = 0.8f;
  }
}

inline void specialise_experts(const std::string& kind, ModelConfig& config) {
  if (kind == "experts") {
    config.moe = {.experts = 5,
                  .experts_used = 2,
                  .ff_dim = 20,
                  .renormalise = true,
                  .router_bias = true,
                  .shared_ff_dim = 24,
                  .shared_gate = true};
  }
  if (kind == "sigmoid_experts") {
    config.moe = {.experts = 8,
                  .experts_used = 3,
                  .ff_dim = 12,
                  .layers = {0, 1},
                  .scores = MoeConfig::Scores::kSigmoid,
                  .choice_bias = true,
                  .groups = 4,
                  .groups_used = 2,
                  .group_score = MoeConfig::GroupScore::kTwoLargest,
                  .renormalise = true,
                  .renormalise_epsilon = 1e-3f,
                  .weight_scale = 2.5f,
                  .shared_ff_dim = 20};
  }
  if (kind == "chosen_experts") {
    config.norm_place = NormPlace::kBoth;
    config.moe = {.experts = 6, .experts_used = 2, .ff_dim = 16, .scores = MoeConfig::Scores::kSoftmaxOfChosen};
  }
}

/// Two blocks with everything a family has; one of network_kinds().
inline ModelConfig transformer_config(const std::string& kind) {
  ModelConfig config = *named_config(kind == "gpt2" ? "gpt2-124m" : kind == "qwen2" ? "qwen2-0.5b" : "llama-1.1b");
  config.name = kind;
  config.layers = 2;
  config.model_dim = 32;
  config.heads = 4;
  config.kv_heads = kind == "gpt2" ? 4 : 2;
  config.head_dim = 8;
  config.ff_dim = 48;
  config.vocab = 61;
  config.context = 64;
  if (config.position == PositionKind::kRope) config.rope.dim = 8;
  specialise(kind, config);
  specialise_experts(kind, config);
  return config;
}
inline const std::vector<std::string>& network_kinds() {
  static const std::vector<std::string> kinds{"llama",       "scaled",       "qwen2",           "gpt2",
                                              "head_norms",  "output_norms", "both_norms",      "parallel",
                                              "shared_norm", "experts",      "sigmoid_experts", "chosen_experts"};
  return kinds;
}

inline std::unique_ptr<TrainableTransformer> make_transformer(const ModelConfig& config,
                                                              const TransformerOptions& options) {
  auto transformer = TrainableTransformer::create(config, options);
  if (!transformer) {
    ADD_FAILURE() << transformer.error().message;
    return nullptr;
  }
  (*transformer)->initialize(3);
  // Norms of 1, biases of 0 and small matrices would hide mistakes.
  const std::span<float> weights = (*transformer)->parameters().weights();
  for (const Parameter& parameter : (*transformer)->parameters().list()) {
    for (std::int64_t i = 0; i < parameter.size(); ++i) {
      float& weight = weights[static_cast<std::size_t>(parameter.offset + i)];
      weight = parameter.rows > 1 ? 8.0f * weight : weight + 0.1f * std::sin(static_cast<float>(3 * i + 1));
    }
  }
  (*transformer)->weights_changed();
  return std::move(*transformer);
}

/// The loss; the gradients of `scale` times it are added to the transformer's.
inline double forward_backward(TrainableTransformer& transformer, float scale = 1.0f) {
  const TransformerInput input = transformer_input(transformer.config(), transformer.options());
  const auto loss = transformer.forward(input.tokens, input.targets);
  EXPECT_TRUE(loss) << loss.error().message;
  const auto status = transformer.backward(scale, {});
  EXPECT_TRUE(status) << status.error().message;
  return loss ? *loss : 0.0;
}

inline double relative_l2(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    difference += (actual[i] - e) * (actual[i] - e);
    size += e * e;
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

inline std::vector<float> copy_of(std::span<const float> values) {
  return {values.begin(), values.end()};
}

}  // namespace butterfly
