// What one training step costs on each node: forward, backward, optimizer, communication, memory. Sources in
// docs/decisions/0009-cost-model-and-strategies.md. Pure arithmetic, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "butterfly/model/training/passes/transformer_options.h"
#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

/// kDdp: every node has the whole model and sums gradients by ring all-reduce. kZero1 (stage 1 of ZeRO): moments are
/// divided, so sums go to their owners, and weights are gathered once a step. kShardGradOp (stage 2): gradients, too.
/// kFullShard (stage 3): weights are divided, too, and gathered part by part for each pass. Gradients are scattered as
/// sums in all but the first. kPipeline: each node has some of the layers, and activations travel.
enum class TrainStrategy : std::uint8_t { kDdp, kZero1, kShardGradOp, kFullShard, kPipeline };
inline constexpr std::array kTrainStrategies{TrainStrategy::kDdp, TrainStrategy::kZero1, TrainStrategy::kShardGradOp,
                                             TrainStrategy::kFullShard, TrainStrategy::kPipeline};
/// "ddp", "zero1", "shard_grad_op", "full_shard", "pipeline".
std::string_view to_string(TrainStrategy strategy);
/// Also "zero2", and "zero3" or "sharded".
Result<TrainStrategy> parse_train_strategy(std::string_view name);

struct TrainOptions {
  TrainStrategy strategy = TrainStrategy::kDdp;
  int batch = 8;        // sequences of a step, over all nodes
  int micro_batch = 0;  // of them that a node computes at once; 0: all that it has; of a pipeline see below
  int seq = 0;          // tokens of each; 0: the model's context
  Recompute recompute = Recompute::kNone;
};

/// Those that can divide the model among this number of nodes: a pipeline has no more than layers and a head.
std::vector<TrainStrategy> strategies_for(const ModelConfig& config, int nodes);

/// What a step moves between nodes, by a ring.
struct TrainCommunication {
  double bytes_sent_per_node = 0.0;
  int messages = 0;  // that a node sends one after another
};

/// Of f32 gradients and weights, b bytes of each, with k = (n-1)/n and m micro-batches: ddp and zero1 2 k b, as
/// gradients are summed after the last of them; shard_grad_op k b (m + 1), full_shard 3 m k b, as the sums of each are
/// scattered (https://arxiv.org/abs/1910.02054, section 7). Errors: kInvalidArgument for fewer than one node or
/// micro-batch, and for kPipeline, whose bytes do not follow from the parameters: predict_training().
Result<TrainCommunication> train_communication(TrainStrategy strategy, int nodes, std::uint64_t parameters,
                                               int micro_batches = 1);

struct TrainNodePrediction {
  double forward_s = 0.0;
  double backward_s = 0.0;
  double optimizer_s = 0.0;
  double communication_s = 0.0;
  double step_s() const { return forward_s + backward_s + optimizer_s + communication_s; }
  double step_low_s = 0.0;   // as much hidden behind the passes as can be, rates better by their uncertainty
  double step_high_s = 0.0;  // nothing hidden, rates worse
  double bytes_sent = 0.0;
  int sequences = 0;  // of the batch
  std::uint64_t weight_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t optimizer_bytes = 0;   // two moments
  std::uint64_t activation_bytes = 0;  // of a micro-batch, kept for the backward pass
  std::uint64_t gathered_bytes = 0;    // the largest part's weights or gradients, whole while it is at work
  std::uint64_t memory_bytes() const {
    return weight_bytes + gradient_bytes + optimizer_bytes + activation_bytes + gathered_bytes;
  }
  std::uint64_t missing_bytes = 0;  // 0 where it fits or the memory is unknown
};

/// What one rank does in a step, however its share was found: by formulas, or by measuring a run.
struct RankWork {
  double forward_s = 0.0;
  double backward_s = 0.0;
  double optimizer_s = 0.0;  // of the whole model
  std::uint64_t parameters = 0;
  std::uint64_t largest_part_bytes = 0;  // weights of a block, or of the head
  std::uint64_t activation_bytes = 0;    // of a micro-batch
  std::uint64_t memory_bytes = 0;        // that it may use; 0: unknown
  int micro_batches = 1;
  double uncertainty = 0.0;  // of its times, as a share
};

/// A rank among `ranks` whose slowest link is `link`. Errors: as train_communication().
Result<TrainNodePrediction> predict_rank(TrainStrategy strategy, int ranks, const LinkDescriptor& link,
                                         const RankWork& work);

/// Half of a ring all-reduce (reduce-scatter, or all-gather) of `bytes` bytes: n-1 messages of an n-th each
/// (https://doi.org/10.1177/1094342005051521).
double ring_half_s(const LinkDescriptor& link, int ranks, double bytes);

/// Between ranks of one machine, who pass values through its memory: written by one, read by the other. Of a hand-over
/// 10 us are assumed.
LinkDescriptor memory_link(double memory_gb_per_s);

/// Of predicted times, as a share: where matmuls were measured, and where a descriptor's rates stand for them, of which
/// kAssumedArithmeticShare is assumed to be reached.
inline constexpr double kMeasuredUncertainty = 0.2, kDescribedUncertainty = 0.5;

struct TrainPrediction {
  double step_s = 0.0;  // of the slowest node, communication not hidden behind the backward pass
  double step_low_s = 0.0, step_high_s = 0.0;
  double tokens_per_s = 0.0;
  double flops = 0.0;                // of all nodes: 3 forward passes
  double bytes_sent_per_node = 0.0;  // per step
  double bubble = 0.0;               // kPipeline: the share of the nodes' time in which they wait for each other
  std::vector<TrainNodePrediction> nodes;
};

/// f32 weights, gradients and moments. Sequences are divided by the nodes' speeds; in a pipeline layers are
/// (divide_pipeline()), and every node sees all sequences, in micro-batches of which there are four for each node where
/// options.micro_batch is 0. Errors: those of validate(), kInvalidArgument for sizes below 1 or beyond the model's
/// context, and a pipeline of more nodes than layers and a head.
Result<TrainPrediction> predict_training(const ModelConfig& config, const PlanCluster& cluster,
                                         const TrainOptions& options);

}  // namespace butterfly
