// What one training step costs on each node: forward, backward, optimizer, communication, memory. Sources in
// docs/decisions/0009-cost-model-and-strategies.md. Pure arithmetic, thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

/// kDdp: every node has the whole model and sums gradients by ring all-reduce. kSharded: weights, gradients and
/// moments are divided; weights are gathered for each pass, gradients scattered as sums.
enum class TrainStrategy : std::uint8_t { kDdp, kSharded };
std::string_view to_string(TrainStrategy strategy);
Result<TrainStrategy> parse_train_strategy(std::string_view name);

struct TrainOptions {
  TrainStrategy strategy = TrainStrategy::kDdp;
  int batch = 8;  // sequences of a step, over all nodes
  int seq = 0;    // tokens of each; 0: the model's context
  // Rate of the training matmuls of each node where they were measured; 0: what its descriptor says of F32 matmuls.
  double matmuls_gflops = 0.0;
};

/// What a step moves between nodes, by a ring.
struct TrainCommunication {
  double bytes_sent_per_node = 0.0;
  int messages = 0;  // that a node sends one after another
};

/// Of f32 gradients and weights. Errors: kInvalidArgument for fewer than one node.
Result<TrainCommunication> train_communication(TrainStrategy strategy, int nodes, std::uint64_t parameters);

struct TrainNodePrediction {
  double forward_s = 0.0;
  double backward_s = 0.0;
  double optimizer_s = 0.0;
  double communication_s = 0.0;
  double step_s() const { return forward_s + backward_s + optimizer_s + communication_s; }
  int sequences = 0;  // of the batch
  std::uint64_t weight_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t optimizer_bytes = 0;   // two moments
  std::uint64_t activation_bytes = 0;  // kept for the backward pass
  std::uint64_t memory_bytes() const { return weight_bytes + gradient_bytes + optimizer_bytes + activation_bytes; }
  std::uint64_t missing_bytes = 0;  // 0 where it fits or the memory is unknown
};

struct TrainPrediction {
  double step_s = 0.0;  // of the slowest node, communication not hidden behind the backward pass
  double tokens_per_s = 0.0;
  double flops = 0.0;                // of all nodes: 3 forward passes
  double bytes_sent_per_node = 0.0;  // per step
  std::vector<TrainNodePrediction> nodes;
};

/// f32 weights, gradients and moments. Sequences are divided evenly. Errors: those of validate(), kInvalidArgument
/// for sizes below 1 or beyond the model's context.
Result<TrainPrediction> predict_training(const ModelConfig& config, const PlanCluster& cluster,
                                         const TrainOptions& options);

}  // namespace butterfly
