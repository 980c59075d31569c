#include "butterfly/plan/cost/training_work.h"

namespace butterfly {

TrainRates train_rates(const NodeDescriptor& node) {
  const NodeRates rates = node_rates(node, DType::kF32);
  const bool measured = node.training_gflops > 0.0;
  return {.flops_per_s = measured ? node.training_gflops * 1e9 : rates.flops_per_s,
          .memory_bytes_per_s = rates.memory_bytes_per_s,
          .uncertainty = measured || rates.measured ? kMeasuredUncertainty : kDescribedUncertainty};
}

/// What https://arxiv.org/abs/2205.05198 counts, for the families that ModelConfig describes, without attention's
/// probabilities, which are computed anew (https://arxiv.org/abs/2205.14135).
double activation_floats(const ModelConfig& config, int layer) {
  const double d = config.model_dim;
  double norms = 2 * 2 * d;  // inputs and normalised inputs of both
  if (config.norms_outputs()) norms += 2 * d;
  double attention = 2.0 * config.q_dim() + 2.0 * config.kv_dim();
  if (config.qk_norm != QkNorm::kNone) attention += config.q_dim() + config.kv_dim();
  const double each = config.mlp == MlpKind::kGated ? 4.0 : 2.0;  // before and after the activation
  if (!config.has_experts(layer)) return norms + attention + each * config.ff_dim;
  const MoeConfig& moe = config.moe;
  // Each expert of a position reads a copy of it, and what it gives is kept for the gradient of its weight.
  const double experts = moe.experts + moe.experts_used * (each * moe.ff_dim + 2 * d);
  return norms + attention + experts + each * moe.shared_ff_dim + (moe.shared_gate ? d : 0.0);
}

}  // namespace butterfly
