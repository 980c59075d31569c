#include "butterfly/train/fit/rank_memory.h"

#include <algorithm>

#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/tensor/huge_pages.h"
#include "butterfly/train/gradients/gradient_tree.h"
#include "butterfly/train/gradients/rank_shards.h"
#include "butterfly/train/gradients/sharded_reducer.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kFloat = sizeof(float);

std::uint64_t bytes_of(std::int64_t elements) {
  return static_cast<std::uint64_t>(elements) * kFloat;
}

std::uint64_t moment_arrays(const OptimizerConfig& optimizer) {
  if (optimizer.kind == OptimizerKind::kAdamw) return 2;
  return optimizer.momentum > 0.0 ? 1 : 0;
}

std::int64_t elements_of(const std::vector<ParameterRange>& ranges) {
  std::int64_t elements = 0;
  for (const ParameterRange& range : ranges) elements += range.size();
  return elements;
}

/// On pages that neighbours may share.
std::uint64_t paged_bytes(const ParameterRange& range) {
  const std::uint64_t first = bytes_of(range.begin) / kHugePageBytes;
  const std::uint64_t behind = (bytes_of(range.end) + kHugePageBytes - 1) / kHugePageBytes;
  return range.size() == 0 ? 0 : (behind - first) * kHugePageBytes;
}

Sharding sharding_of_run(const RunConfig& run) {
  return ranks_of(run.parallel) > 1 ? sharding_of(run.parallel.strategy) : Sharding{};
}

/// Threads share the fate of their process, and have no copies of each other's parts.
ParallelConfig as_it_runs(ParallelConfig parallel) {
  if (!has_ranks_elsewhere(parallel) && parallel.engine == RankEngine::kInproc) parallel.mirror = 0;
  return parallel;
}

}  // namespace

std::uint64_t RankMemory::peak_bytes() const {
  const std::uint64_t steady = process_bytes + weight_bytes + gradient_bytes + moment_bytes + activation_bytes;
  return std::max(first_bytes, steady + passing_bytes + copied_bytes);
}

Result<MemoryPlan> MemoryPlan::create(const ModelConfig& shape, const RunConfig& config, const Options& options) {
  MemoryPlan plan;
  plan.shape_ = shape;
  plan.options_ = options;
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  // The shortest sequence: parameters are what counts here.
  BF_ASSIGN_OR_RETURN(plan.skeleton_,
                      TrainableTransformer::create(
                          shape, {.fusion = config.fusion,
                                  .micro_batch = 1,
                                  .seq = 1,
                                  .isa = isa,
                                  .memory = {.weights = Residency::kSparse, .gradients = Residency::kSparse}}));
  const ParameterSet& parameters = plan.skeleton_->parameters();
  plan.flat_bytes_ = bytes_of(parameters.padded_size());
  for (const Parameter& parameter : parameters.list()) {
    plan.largest_parameter_bytes_ = std::max(plan.largest_parameter_bytes_, bytes_of(parameter.size()));
  }
  const std::vector<ParameterUnit> units = plan.skeleton_->units();
  plan.embedding_bytes_ = paged_bytes(units[0].ranges[0]);
  plan.head_bytes_ = paged_bytes(units[0].ranges[1]);
  std::uint64_t before = 0;
  for (std::size_t unit = 1; unit < units.size(); ++unit) {
    const std::uint64_t layer = paged_bytes(units[unit].ranges[0]);
    plan.largest_layer_bytes_ = std::max(plan.largest_layer_bytes_, layer);
    plan.largest_pair_bytes_ = std::max(plan.largest_pair_bytes_, before + layer);
    plan.layers_bytes_ += layer;
    before = layer;
  }
  return plan;
}

/// The most of both passes. Weights: embedding and head through all of the forward pass and for the head's backward
/// pass, else a layer and the next. Gradients: what is at work and what is on its way, and a tied embedding's through
/// all of the backward pass.
std::uint64_t MemoryPlan::passing_bytes(const RunConfig& run) const {
  const Sharding sharding = sharding_of_run(run);
  if (!sharding.gradients) return 0;
  const std::uint64_t ends = embedding_bytes_ + head_bytes_, layer = largest_layer_bytes_;
  const std::uint64_t kept = shape_.tied_head ? ends : 0;
  const std::uint64_t layers = kept + std::min((1 + kUnitsOnTheirWay) * layer, layers_bytes_);
  const std::uint64_t head = shape_.tied_head ? ends : head_bytes_;
  const std::uint64_t embedding = ends + std::min(kUnitsOnTheirWay * layer, layers_bytes_);
  if (!sharding.weights) return std::max({layers, head, embedding});
  // The copy in bf16 is of what is at work alone.
  const std::uint64_t copies = run.precision == Precision::kBfloat16 ? (ends + layer) / 2 : 0;
  return copies + std::max({ends + largest_pair_bytes_, ends + layer + head, largest_pair_bytes_ + layers, embedding});
}

/// A bucket of what others bring.
std::uint64_t MemoryPlan::sums_of_others(const RunConfig& run, const std::vector<MicroBatches>& shares) const {
  const Sharding sharding = sharding_of_run(run);
  if (shares.size() < 2) return 0;
  const auto bucket = static_cast<std::uint64_t>(run.parallel.bucket_bytes) + bytes_of(UpdateChunk::kElements);
  if (!run.parallel.deterministic || sharding.gradients) return sharding.optimizer ? bucket : 0;
  std::size_t subtrees = 0;
  for (const MicroBatches& share : shares) subtrees += maximal_subtrees(share.first, share.last).size();
  return bucket * subtrees / shares.size();
}

RankMemory MemoryPlan::of_rank(const RunConfig& run, const ShardMap& map, const RankWorkShares& work, int rank) const {
  const std::vector<MicroBatches>& shares = work.micro_batches;
  const bool pipeline = !work.stages.empty();
  const Sharding sharding = sharding_of_run(run);
  const std::uint64_t held = bytes_of(elements_of(map.held(rank))), owned = bytes_of(map.owned_elements(rank));
  const std::uint64_t copy = run.precision == Precision::kBfloat16 && !sharding.weights ? flat_bytes_ / 2 : 0;
  const MicroBatches& share = shares[static_cast<std::size_t>(rank)];
  RankMemory memory{.process_bytes = options_.process_bytes};
  if (!has_ranks_elsewhere(run.parallel) && run.parallel.engine == RankEngine::kInproc) {
    memory.process_bytes /= static_cast<std::uint64_t>(run.parallel.ranks);
  }
  memory.weight_bytes = (sharding.weights ? held : flat_bytes_) + copy;
  memory.gradient_bytes = (sharding.gradients ? held : flat_bytes_) + (pipeline ? 0 : sums_of_others(run, shares));
  if (run.parallel.deterministic && pipeline) {
    memory.gradient_bytes += held_at_most(share.first, share.last - 1) * owned;
  } else if (run.parallel.deterministic) {
    memory.gradient_bytes += sharding.gradients ? held_between_rounds(shares) * owned
                                                : held_at_most(share.first, share.last - 1) * flat_bytes_;
  }
  const GradientCompression packed = run.parallel.compression;
  const bool exact = packed == GradientCompression::kOff || packed == GradientCompression::kLz4 ||
                     packed == GradientCompression::kZstd;
  if (shares.size() > 1 && !exact) memory.gradient_bytes += flat_bytes_;  // the error that is fed back
  const std::uint64_t moments = moment_arrays(run.optimizer);
  memory.moment_bytes = moments * (sharding.optimizer ? held : flat_bytes_);
  const bool is_last = pipeline && work.stages.back().rank == rank;
  memory.passing_bytes = !pipeline ? passing_bytes(run) : is_last ? open_heads(run, map.ranks()) : 0;
  const bool copies = !run.checkpoint.directory.empty() && run.checkpoint.asynchronous;
  if (copies && sharding.optimizer && !has_ranks_elsewhere(run.parallel)) memory.copied_bytes = (1 + moments) * owned;
  if (rank != 0) return memory;
  if (copies && !sharding.optimizer) memory.copied_bytes = (1 + moments) * flat_bytes_;
  // Samples and the file of the result need all weights here; samples also packed ones.
  if (sharding.weights && (!run.out.empty() || run.sample_every > 0)) {
    memory.passing_bytes = std::max(memory.passing_bytes, flat_bytes_);
  }
  if (run.sample_every > 0) memory.copied_bytes += flat_bytes_;
  return memory;
}

/// What a stage keeps besides its part: with a tied embedding the last one, gradients of micro-batches under way.
std::uint64_t MemoryPlan::open_heads(const RunConfig& run, int ranks) const {
  if (!run.parallel.deterministic || !shape_.tied_head) return 0;
  const auto kept = static_cast<std::uint64_t>(kept_micro_batches(0, ranks, run.global_batch / run.micro_batch));
  return kept * (embedding_bytes_ + head_bytes_);
}

Result<RankMemory> MemoryPlan::fullest(const RunConfig& given) const {
  RunConfig run = given;
  run.shape = shape_;
  run.seq = run.seq > 0 ? run.seq : shape_.context;
  const int ranks = ranks_of(run.parallel);
  BF_ASSIGN_OR_RETURN(const RankWorkShares work, share_work(run, ranks, run.parallel.speeds));
  const ShardMap map = make_shard_map(as_it_runs(run.parallel), ranks, work.stages, *skeleton_);
  RankMemory fullest;
  for (int rank = 0; rank < ranks; ++rank) {
    RankMemory memory = of_rank(run, map, work, rank);
    const MicroBatches& mine = work.micro_batches[static_cast<std::size_t>(rank)];
    BF_ASSIGN_OR_RETURN(
        const std::uint64_t activations,
        planned_activation_bytes(shape_, {.precision = run.precision,
                                          .recompute = run.recompute,
                                          .fusion = run.fusion,
                                          .micro_batch = sequences_at_once(work, mine),
                                          .seq = run.seq,
                                          .threads = options_.threads,
                                          .part = part_of_rank(work.stages, rank, work.micro_batches.front().total),
                                          .router_aux_loss = run.router_aux_loss_coef,
                                          .router_aux_loss_over = run.router_aux_loss_over}));
    memory.activation_bytes = activations;
    // Parts that other machines hold are made here.
    if (rank == 0 && has_ranks_elsewhere(run.parallel) && sharding_of_run(run).weights) {
      memory.first_bytes = memory.process_bytes + activations + flat_bytes_ + largest_parameter_bytes_;
    }
    if (memory.peak_bytes() > fullest.peak_bytes()) fullest = memory;
  }
  return fullest;
}

}  // namespace butterfly
