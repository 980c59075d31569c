#include "butterfly/plan/cost/training_cost.h"

#include <algorithm>
#include <limits>
#include <string>

#include "butterfly/model/training/train_support.h"

namespace butterfly {
namespace {

constexpr double kBackwardOverForward = 2.0;  // gradients of inputs and of weights: a matmul each
constexpr double kAdamWBytes = 7 * 4.0;       // weight, gradient and two moments read, all but the gradient written
constexpr std::uint64_t kFloat = sizeof(float);

// Every kept float is written and read once in the forward pass; the backward pass reads it, and writes and reads its
// gradient.
constexpr double kForwardTouches = 2.0, kBackwardTouches = 3.0;

/// Floats that the backward pass of a block needs of each position: what https://arxiv.org/abs/2205.05198 counts, for
/// the families that ModelConfig describes, without attention's probabilities, which are computed anew
/// (https://arxiv.org/abs/2205.14135).
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

double activation_floats(const ModelConfig& config) {
  double floats = 0.0;
  for (int layer = 0; layer < config.layers; ++layer) floats += activation_floats(config, layer);
  return floats;
}

/// The slowest link of the ring 0, 1, ... n-1, 0.
LinkDescriptor slowest_ring_link(const PlanCluster& cluster) {
  LinkDescriptor slowest{.latency_us = 0.0, .gb_per_s = std::numeric_limits<double>::infinity()};
  for (int node = 0; node < cluster.size(); ++node) {
    const LinkDescriptor& link = cluster.link(node, (node + 1) % cluster.size());
    slowest.latency_us = std::max(slowest.latency_us, link.latency_us);
    slowest.gb_per_s = std::min(slowest.gb_per_s, link.gb_per_s);
  }
  return slowest;
}

/// Half of a ring all-reduce (reduce-scatter, or all-gather): n-1 messages of a n-th each
/// (https://doi.org/10.1177/1094342005051521).
double ring_half_s(const PlanCluster& cluster, double bytes) {
  const double n = cluster.size();
  return n < 2 ? 0.0 : (n - 1) * transfer_s(slowest_ring_link(cluster), bytes / n);
}

/// Sums of gradients: two halves of a ring. Sharded: weights for forward, weights for backward, gradients.
int ring_halves(TrainStrategy strategy) {
  return strategy == TrainStrategy::kSharded ? 3 : 2;
}

double divide(double amount, double per_s) {
  return per_s > 0.0 ? amount / per_s : std::numeric_limits<double>::infinity();
}

Status check_sizes(const ModelConfig& config, const TrainOptions& options) {
  if (options.batch < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a batch of {} sequences, expected at least 1", options.batch);
  }
  if (options.seq < 0 || options.seq > config.context) {
    return make_error(ErrorCode::kInvalidArgument, "training sequences of {} tokens, the model has 1 to {}",
                      options.seq, config.context);
  }
  return {};
}

}  // namespace

std::string_view to_string(TrainStrategy strategy) {
  return strategy == TrainStrategy::kDdp ? "ddp" : "sharded";
}

Result<TrainStrategy> parse_train_strategy(std::string_view name) {
  for (const TrainStrategy strategy : {TrainStrategy::kDdp, TrainStrategy::kSharded}) {
    if (to_string(strategy) == name) return strategy;
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown training strategy '{}', known are ddp, sharded", name);
}

Result<TrainCommunication> train_communication(TrainStrategy strategy, int nodes, std::uint64_t parameters) {
  if (nodes < 1) return make_error(ErrorCode::kInvalidArgument, "{} nodes train, at least 1 is needed", nodes);
  const int halves = ring_halves(strategy);
  const auto model_bytes = static_cast<double>(parameters * kFloat);
  return TrainCommunication{.bytes_sent_per_node = halves * model_bytes * (nodes - 1) / nodes,
                            .messages = halves * (nodes - 1)};
}

Result<TrainPrediction> predict_training(const ModelConfig& config, const PlanCluster& cluster,
                                         const TrainOptions& options) {
  BF_TRY(validate(cluster));
  BF_TRY(validate(config));
  BF_TRY(check_trainable(config));
  ModelConfig trained = config;
  trained.weight_type = DType::kF32;
  BF_ASSIGN_OR_RETURN(const ModelCost cost, model_cost(trained, DType::kF32));
  BF_TRY(check_sizes(config, options));
  const int seq_tokens = options.seq == 0 ? config.context : options.seq;
  const double seq = seq_tokens;
  // Appendix B of https://arxiv.org/abs/2204.02311, attention causal: half of the positions at the mean.
  const double flops = seq * forward_flops_per_token(config, seq_tokens);
  const bool sharded = options.strategy == TrainStrategy::kSharded;
  const auto nodes = static_cast<std::uint64_t>(cluster.size());
  const std::uint64_t held = sharded ? (cost.parameters + nodes - 1) / nodes : cost.parameters;
  const auto model_bytes = static_cast<double>(cost.parameters * kFloat);
  const double halves = ring_halves(options.strategy);

  TrainPrediction prediction;
  prediction.flops = (1.0 + kBackwardOverForward) * flops * options.batch;
  BF_ASSIGN_OR_RETURN(const TrainCommunication moved,
                      train_communication(options.strategy, cluster.size(), cost.parameters));
  prediction.bytes_sent_per_node = moved.bytes_sent_per_node;
  for (int node = 0; node < cluster.size(); ++node) {
    const NodeDescriptor& descriptor = cluster.nodes[static_cast<std::size_t>(node)];
    const NodeRates rates = node_rates(descriptor, DType::kF32);
    TrainNodePrediction one;
    one.sequences = options.batch * (node + 1) / cluster.size() - options.batch * node / cluster.size();
    const double matmuls_per_s = options.matmuls_gflops > 0.0 ? options.matmuls_gflops * 1e9 : rates.flops_per_s;
    const double matmuls_s = divide(one.sequences * flops, matmuls_per_s);
    const double floats = one.sequences * (seq * activation_floats(config) + seq * config.vocab);
    const double touch_s = divide(floats * kFloat, rates.memory_bytes_per_s);
    one.forward_s = matmuls_s + kForwardTouches * touch_s;
    one.backward_s = kBackwardOverForward * matmuls_s + kBackwardTouches * touch_s;
    one.optimizer_s = divide(kAdamWBytes * static_cast<double>(held), rates.memory_bytes_per_s);
    one.communication_s = halves * ring_half_s(cluster, model_bytes);
    one.weight_bytes = held * kFloat;
    one.gradient_bytes = held * kFloat;
    one.optimizer_bytes = 2 * held * kFloat;
    one.activation_bytes = static_cast<std::uint64_t>(floats) * kFloat;
    // While a block is at work its weights and gradients are whole.
    if (sharded) one.activation_bytes += 2 * std::max(cost.block.weight_bytes, cost.head.weight_bytes);
    const std::uint64_t memory = descriptor.memory_bytes;
    if (memory > 0 && one.memory_bytes() > memory) one.missing_bytes = one.memory_bytes() - memory;
    prediction.step_s = std::max(prediction.step_s, one.step_s());
    prediction.nodes.push_back(one);
  }
  prediction.tokens_per_s = divide(seq * options.batch, prediction.step_s);
  return prediction;
}

}  // namespace butterfly
