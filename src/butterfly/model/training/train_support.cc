#include "butterfly/model/training/train_support.h"

#include <numeric>
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

namespace {

/// Of the matmuls that these weights are of, without those that are looked up.
double matmul_flops(const ModelConfig& config, const std::vector<WeightInfo>& weights) {
  double elements = 0.0;
  for (const WeightInfo& weight : weights) {
    if (weight.rows == 1) continue;
    const bool of_expert = weight.name.find("_exps.") != std::string::npos;
    const double share = of_expert ? static_cast<double>(config.moe.experts_used) / config.moe.experts : 1.0;
    elements += share * static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
  }
  return 2.0 * elements;
}

}  // namespace

ForwardFlops forward_flops(const ModelConfig& config, int seq) {
  ForwardFlops flops{.head = matmul_flops(config, expected_weights(config, {.head = true}))};
  for (int layer = 0; layer < config.layers; ++layer) {
    const WeightRange one{.first_layer = layer, .last_layer = layer + 1, .embedding = false, .head = false};
    const double attention = 4.0 * static_cast<double>(config.q_dim()) * mean_keys(seq, config.window_of(layer));
    flops.layers.push_back(matmul_flops(config, expected_weights(config, one)) + attention);
  }
  return flops;
}

double forward_flops_per_token(const ModelConfig& config, int seq) {
  const ForwardFlops flops = forward_flops(config, seq);
  return std::accumulate(flops.layers.begin(), flops.layers.end(), flops.head);
}

}  // namespace butterfly
