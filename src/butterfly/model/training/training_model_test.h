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

/// Two blocks with everything a family has. "llama", "scaled" (partial rotation, scaled frequencies, biases), "qwen2",
/// "gpt2".
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
  if (kind == "qwen2") config.tied_head = true;
  if (kind == "scaled") {
    config.rope.dim = 6;
    config.rope.scaling = RopeConfig::Scaling::kLlama3;
    config.rope.factor = 4.0f;
    config.rope.original_context = 16;
    config.attention_output_bias = config.mlp_bias = config.qkv_bias = true;
  }
  return config;
}
inline const std::vector<std::string>& network_kinds() {
  static const std::vector<std::string> kinds{"llama", "scaled", "qwen2", "gpt2"};
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
