#include "butterfly/model/training/train_support.h"

#include <string>
#include <vector>

#include "butterfly/model/core/weights.h"

namespace butterfly {
namespace {

tl::unexpected<Error> cannot_train(const ModelConfig& config, const char* what) {
  return make_error(ErrorCode::kUnsupported, "{} cannot be trained: {}",
                    config.name.empty() ? config.architecture : config.name, what);
}

Status check_mlps(const ModelConfig& config) {
  const bool gated = config.mlp == MlpKind::kGated;
  if (gated && config.activation == Activation::kGeluErf) {
    return cannot_train(config, "a gated MLP with the exact GELU has no backward pass");
  }
  if (config.activation == Activation::kRelu) return cannot_train(config, "an MLP with ReLU has no backward pass");
  if (!gated && config.activation == Activation::kSilu) {
    return cannot_train(config, "a plain MLP with SiLU has no backward pass");
  }
  if (config.moe.experts == 0) return {};
  if (config.moe.swiglu_limit != 0) return cannot_train(config, "a limited SwiGLU of experts has no backward pass");
  if (config.moe.expert_bias) return cannot_train(config, "biases of experts have no backward pass");
  return {};
}

/// The mean number of keys that a token of a sequence sees: half of them, of a window what it leaves.
double mean_keys(double seq, double window) {
  return window > 0.0 && window < seq ? window - window * window / (2.0 * seq) : seq / 2.0;
}

}  // namespace

Status check_trainable(const ModelConfig& config) {
  if (config.encoder_layers > 0) return cannot_train(config, "an encoder has no backward pass");
  if (config.output != OutputKind::kLogits) return cannot_train(config, "a model without a head predicts nothing");
  if (config.has_latent()) return cannot_train(config, "latent attention has no backward pass");
  if (config.attention_sinks) return cannot_train(config, "attention sinks have no backward pass");
  if (config.norm_place == NormPlace::kAfter) return cannot_train(config, "norms after the sums have no backward pass");
  if (config.position == PositionKind::kAlibi) return cannot_train(config, "ALiBi has no backward pass");
  if (config.norm == NormKind::kRms && config.norm_bias) {
    return cannot_train(config, "RMSNorm with a bias has no backward pass");
  }
  return check_mlps(config);
}

double forward_flops_per_token(const ModelConfig& config, int seq) {
  const WeightRange all{.first_layer = 0, .last_layer = config.layers, .embedding = true, .head = false};
  std::vector<WeightInfo> weights = expected_weights(config, all);
  for (WeightInfo& weight : expected_weights(config, {.head = true})) weights.push_back(std::move(weight));
  double matmuls = 0.0;
  bool embedding_seen = false;
  for (const WeightInfo& weight : weights) {
    const bool embedding = weight.name == "token_embd.weight";
    const bool again = embedding && embedding_seen;  // the head of a tied model
    embedding_seen |= embedding;
    const bool looked_up = weight.name == "position_embd.weight" || (embedding && !config.tied_head);
    if (weight.rows == 1 || looked_up || again) continue;
    const bool of_expert = weight.name.find("_exps.") != std::string::npos;
    const double share = of_expert ? static_cast<double>(config.moe.experts_used) / config.moe.experts : 1.0;
    matmuls += share * static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
  }
  double keys = 0.0;
  for (int layer = 0; layer < config.layers; ++layer) keys += mean_keys(seq, config.window_of(layer));
  return 2.0 * matmuls + 4.0 * static_cast<double>(config.q_dim()) * keys;
}

}  // namespace butterfly
