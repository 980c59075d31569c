#include "butterfly/plan/cost/training_cost.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "butterfly/model/training/train_support.h"
#include "butterfly/plan/cost/micro_batch_shares.h"
#include "butterfly/plan/cost/pipeline_cost.h"
#include "butterfly/plan/cost/training_work.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kFloat = sizeof(float);

double activation_floats(const ModelConfig& config) {
  double floats = 0.0;
  for (int layer = 0; layer < config.layers; ++layer) floats += activation_floats(config, layer);
  return floats;
}

/// A batch of `sequences` in micro-batches of `micro_batch`; 0: one.
int micro_batches_of(int sequences, int micro_batch) {
  return micro_batch > 0 ? (sequences + micro_batch - 1) / micro_batch : 1;
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

/// Halves of a ring, reduce-scatters and all-gathers, that can go on while a pass computes.
struct RingHalves {
  int forward = 0, backward = 0;
  double backward_share = 1.0;  // of the backward passes, behind which they can hide
  int all() const { return forward + backward; }
};

RingHalves ring_halves(TrainStrategy strategy, int micro_batches) {
  switch (strategy) {
    case TrainStrategy::kShardGradOp:  // weights once, sums of gradients after each micro-batch
      return {.forward = 1, .backward = micro_batches};
    case TrainStrategy::kFullShard:  // weights for each pass, and the sums
      return {.forward = micro_batches, .backward = 2 * micro_batches};
    case TrainStrategy::kZero1:
      return {.forward = 1, .backward = 1, .backward_share = 1.0 / micro_batches};
    case TrainStrategy::kPipeline:  // no rings
    case TrainStrategy::kDdp:
      break;
  }
  return {.forward = 0, .backward = 2, .backward_share = 1.0 / micro_batches};
}

Status check_sizes(const ModelConfig& config, const TrainOptions& options) {
  if (options.batch < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a batch of {} sequences, expected at least 1", options.batch);
  }
  if (options.micro_batch < 0) {
    return make_error(ErrorCode::kInvalidArgument, "a micro-batch of {} sequences, expected at least 1",
                      options.micro_batch);
  }
  if (options.seq < 0 || options.seq > config.context) {
    return make_error(ErrorCode::kInvalidArgument, "training sequences of {} tokens, the model has 1 to {}",
                      options.seq, config.context);
  }
  return {};
}

/// What the backward pass computes again of a micro-batch, of each token.
struct Again {
  double flops = 0.0;
  double floats = 0.0;  // written and read
};

Again computed_again(const ModelConfig& config, const TrainOptions& options, int seq, int micro_batch) {
  const double head_flops = 2.0 * config.model_dim * config.vocab;
  Again again;
  // Of the chunks that a large head works in, all but the last (TransformerOptions::logits_bytes_max).
  const std::int64_t rows = std::int64_t{micro_batch} * seq, row_bytes = std::int64_t{config.vocab} * kFloat;
  const std::int64_t chunk = std::max<std::int64_t>(1, TransformerOptions{}.logits_bytes_max / row_bytes);
  if (rows > chunk)
    again.flops = head_flops * static_cast<double>((rows - 1) / chunk * chunk) / static_cast<double>(rows);
  if (options.recompute == Recompute::kBlock) {
    again.flops += forward_flops_per_token(config, seq) - head_flops;
    again.floats = activation_floats(config);
  } else if (options.recompute == Recompute::kSelective) {
    const double mlp = config.moe.experts > 0 ? config.moe.experts_used * config.moe.ff_dim : config.ff_dim;
    again.floats = config.layers * (2.0 * config.model_dim + mlp);
  }
  return again;
}

/// A part of the batch on one node, at its rates.
RankWork work_of_node(const ModelConfig& config, const ModelCost& cost, const NodeDescriptor& node,
                      const TrainOptions& options, int sequences) {
  const int seq_tokens = options.seq == 0 ? config.context : options.seq;
  const double seq = seq_tokens;
  // Appendix B of https://arxiv.org/abs/2204.02311, attention causal: half of the positions at the mean.
  const double flops = seq * forward_flops_per_token(config, seq_tokens);
  const TrainRates rates = train_rates(node);
  const double matmuls_s = divide(sequences * flops, rates.flops_per_s);
  const double floats = seq * activation_floats(config) + seq * config.vocab;  // of a sequence
  const double touch_s = divide(sequences * floats * kFloat, rates.memory_bytes_per_s);
  const int micro_batch = options.micro_batch > 0 ? std::min(options.micro_batch, sequences) : sequences;
  const Again again = computed_again(config, options, seq_tokens, micro_batch);
  const double again_s = divide(sequences * seq * again.flops, rates.flops_per_s) +
                         kForwardTouches * divide(sequences * seq * again.floats * kFloat, rates.memory_bytes_per_s);
  return {.forward_s = matmuls_s + kForwardTouches * touch_s,
          .backward_s = kBackwardOverForward * matmuls_s + kBackwardTouches * touch_s + again_s,
          .optimizer_s = divide(kAdamWBytes * static_cast<double>(cost.parameters), rates.memory_bytes_per_s),
          .parameters = cost.parameters,
          .largest_part_bytes = std::max(cost.block.weight_bytes, cost.head.weight_bytes),
          .activation_bytes = static_cast<std::uint64_t>(micro_batch * floats) * kFloat,
          .memory_bytes = node.memory_bytes,
          .micro_batches = micro_batches_of(sequences, micro_batch),
          .uncertainty = rates.uncertainty};
}

/// What a node computes of a batch, in a number of passes of one or more micro-batches.
struct NodeShare {
  int sequences = 0;
  int passes = 1;
  int in_a_pass = 0;  // sequences; 0: those of a micro-batch at most
};

/// By the nodes' speeds, as ranks do once they have seen them; evenly where a speed is unknown, or there are fewer
/// micro-batches than nodes.
Result<std::vector<NodeShare>> divide_batch(const ModelConfig& config, const ModelCost& cost,
                                            const PlanCluster& cluster, const TrainOptions& options) {
  const int micro_batch = options.micro_batch > 0 ? options.micro_batch : 1, nodes = cluster.size();
  const bool one_by_one = config.moe.experts > 0;  // their load is balanced over a micro-batch
  const int size = one_by_one ? micro_batch : shared_micro_batch(options.batch, micro_batch);
  const int total = micro_batches_of(options.batch, size);
  std::vector<double> speeds;
  for (const NodeDescriptor& node : cluster.nodes) {
    const RankWork one = work_of_node(config, cost, node, options, 1);
    speeds.push_back(1.0 / (one.forward_s + one.backward_s));
  }
  std::vector<NodeShare> all;
  if (total < nodes || std::ranges::any_of(speeds, [](double speed) { return !(speed > 0.0); })) {
    for (std::int64_t node = 0, batch = options.batch; node < nodes; ++node) {
      const int sequences = static_cast<int>(batch * (node + 1) / nodes - batch * node / nodes);
      all.push_back({.sequences = sequences, .passes = micro_batches_of(sequences, options.micro_batch)});
    }
    return all;
  }
  BF_ASSIGN_OR_RETURN(const std::vector<MicroBatches> shares, divide_micro_batches(total, nodes, speeds));
  const bool in_rounds =
      options.strategy == TrainStrategy::kShardGradOp || options.strategy == TrainStrategy::kFullShard;
  const int usual = micro_batch / size;
  const int rounds = rounds_of(shares, {.usual = usual, .most = one_by_one ? usual : PassSize::kTimes * usual});
  for (const MicroBatches& share : shares) {
    const int sequences = std::min(options.batch, share.last * size) - share.first * size;
    all.push_back({.sequences = sequences, .passes = micro_batches_of(sequences, options.micro_batch)});
    if (!in_rounds || options.micro_batch == 0) continue;
    all.back().passes = rounds;
    all.back().in_a_pass = std::max(micro_batch, size * most_in_a_round(share, rounds));
  }
  return all;
}

}  // namespace

std::string_view to_string(TrainStrategy strategy) {
  constexpr std::array<std::string_view, kTrainStrategies.size()> kNames{"ddp", "zero1", "shard_grad_op", "full_shard",
                                                                         "pipeline"};
  return kNames[static_cast<std::size_t>(strategy)];
}

Result<TrainStrategy> parse_train_strategy(std::string_view name) {
  for (const TrainStrategy strategy : kTrainStrategies) {
    if (to_string(strategy) == name) return strategy;
  }
  if (name == "zero2") return TrainStrategy::kShardGradOp;
  if (name == "zero3" || name == "sharded") return TrainStrategy::kFullShard;
  return make_error(
      ErrorCode::kInvalidArgument,
      "unknown training strategy '{}', known are ddp, zero1, shard_grad_op (zero2), full_shard (zero3), pipeline",
      name);
}

std::vector<TrainStrategy> strategies_for(const ModelConfig& config, int nodes) {
  std::vector<TrainStrategy> all(kTrainStrategies.begin(), kTrainStrategies.end());
  std::erase_if(all, [&](TrainStrategy one) { return one == TrainStrategy::kPipeline && nodes > config.layers + 1; });
  return all;
}

double ring_half_s(const LinkDescriptor& link, int ranks, double bytes) {
  return ranks < 2 ? 0.0 : (ranks - 1) * transfer_s(link, bytes / ranks);
}

LinkDescriptor memory_link(double memory_gb_per_s) {
  constexpr double kHandOverUs = 10.0, kCopies = 2.0;
  return {.latency_us = kHandOverUs, .gb_per_s = memory_gb_per_s / kCopies};
}

Result<TrainCommunication> train_communication(TrainStrategy strategy, int nodes, std::uint64_t parameters,
                                               int micro_batches) {
  if (nodes < 1) return make_error(ErrorCode::kInvalidArgument, "{} nodes train, at least 1 is needed", nodes);
  if (micro_batches < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} micro-batches, at least 1 is needed", micro_batches);
  }
  if (strategy == TrainStrategy::kPipeline) {
    return make_error(ErrorCode::kInvalidArgument,
                      "what a pipeline sends follows from its micro-batches and layers, not from its parameters: see "
                      "butterfly plan --train");
  }
  const int halves = ring_halves(strategy, micro_batches).all();
  const double model_bytes = static_cast<double>(parameters) * kFloat;
  return TrainCommunication{.bytes_sent_per_node = halves * model_bytes * (nodes - 1) / nodes,
                            .messages = halves * (nodes - 1)};
}

Result<TrainNodePrediction> predict_rank(TrainStrategy strategy, int ranks, const LinkDescriptor& link,
                                         const RankWork& work) {
  BF_ASSIGN_OR_RETURN(const TrainCommunication moved,
                      train_communication(strategy, ranks, work.parameters, work.micro_batches));
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t share = (work.parameters + n - 1) / n;
  const bool weights_whole = strategy != TrainStrategy::kFullShard, state_whole = strategy == TrainStrategy::kDdp;
  const bool gradients_whole = state_whole || strategy == TrainStrategy::kZero1;
  TrainNodePrediction one{
      .forward_s = work.forward_s, .backward_s = work.backward_s, .bytes_sent = moved.bytes_sent_per_node};
  one.optimizer_s = state_whole ? work.optimizer_s : work.optimizer_s / ranks;
  const RingHalves halves = ring_halves(strategy, work.micro_batches);
  const double half_s = ring_half_s(link, ranks, static_cast<double>(work.parameters) * kFloat);
  one.communication_s = halves.all() * half_s;
  const double exposed_s = std::max(0.0, halves.forward * half_s - work.forward_s) +
                           std::max(0.0, halves.backward * half_s - halves.backward_share * work.backward_s);
  const double computing_s = one.forward_s + one.backward_s + one.optimizer_s;
  one.step_low_s = (1.0 - work.uncertainty) * (computing_s + exposed_s);
  one.step_high_s = (1.0 + work.uncertainty) * one.step_s();
  one.weight_bytes = (weights_whole ? work.parameters : share) * kFloat;
  one.gradient_bytes = (gradients_whole ? work.parameters : share) * kFloat;
  one.optimizer_bytes = 2 * (state_whole ? work.parameters : share) * kFloat;
  one.activation_bytes = work.activation_bytes;
  if (ranks > 1 && !gradients_whole) one.gathered_bytes = (weights_whole ? 1 : 2) * work.largest_part_bytes;
  if (work.memory_bytes > 0 && one.memory_bytes() > work.memory_bytes) {
    one.missing_bytes = one.memory_bytes() - work.memory_bytes;
  }
  return one;
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
  const int seq = options.seq == 0 ? config.context : options.seq;
  const LinkDescriptor link = slowest_ring_link(cluster);
  if (options.strategy == TrainStrategy::kPipeline) return predict_pipeline(trained, cluster, options, link);

  TrainPrediction prediction;
  prediction.flops =
      (1.0 + kBackwardOverForward) * seq * forward_flops_per_token(config, seq) * static_cast<double>(options.batch);
  BF_ASSIGN_OR_RETURN(const std::vector<NodeShare> shares, divide_batch(trained, cost, cluster, options));
  for (int node = 0; node < cluster.size(); ++node) {
    const NodeShare& share = shares[static_cast<std::size_t>(node)];
    RankWork work =
        work_of_node(trained, cost, cluster.nodes[static_cast<std::size_t>(node)], options, share.sequences);
    work.micro_batches = share.passes;
    if (share.in_a_pass > options.micro_batch) {
      work.activation_bytes = work.activation_bytes / static_cast<std::uint64_t>(options.micro_batch) *
                              static_cast<std::uint64_t>(share.in_a_pass);
    }
    BF_ASSIGN_OR_RETURN(TrainNodePrediction one, predict_rank(options.strategy, cluster.size(), link, work));
    one.sequences = share.sequences;
    prediction.step_s = std::max(prediction.step_s, one.step_s());
    prediction.step_low_s = std::max(prediction.step_low_s, one.step_low_s);
    prediction.step_high_s = std::max(prediction.step_high_s, one.step_high_s);
    prediction.bytes_sent_per_node = std::max(prediction.bytes_sent_per_node, one.bytes_sent);
    prediction.nodes.push_back(one);
  }
  prediction.tokens_per_s = divide(static_cast<double>(seq) * options.batch, prediction.step_s);
  return prediction;
}

}  // namespace butterfly
