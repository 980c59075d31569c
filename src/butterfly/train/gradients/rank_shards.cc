#include "butterfly/train/gradients/rank_shards.h"

#include <algorithm>
#include <utility>

namespace butterfly {

ShardMap make_shard_map(const ParallelConfig& parallel, int ranks, std::span<const PipelineStage> stages,
                        TrainableTransformer& transformer) {
  const bool hybrid = parallel.strategy == ParallelStrategy::kHybrid && parallel.shard_group > 0;
  // After a loss the ranks that remain may not be whole groups.
  const int group = hybrid && ranks % parallel.shard_group == 0 ? parallel.shard_group : ranks;
  ShardOptions options{
      .ranks = ranks, .group = group, .mirrors = parallel.mirror, .bucket_bytes = parallel.bucket_bytes};
  if (parallel.state_shares.size() == static_cast<std::size_t>(group)) options.shares = parallel.state_shares;
  if (!stages.empty()) options.owners.push_back(stages.back().rank);
  for (const PipelineStage& stage : stages) {
    for (int layer = stage.first_layer; layer < stage.last_layer; ++layer) options.owners.push_back(stage.rank);
  }
  return ShardMap(transformer.parameters(), transformer.units(), options);
}

namespace {

/// Several micro-batches in one pass are added up in another order, and experts' load would be balanced over all of
/// them; a pipeline's are numbered.
bool is_one_by_one(const RunConfig& config) {
  return config.parallel.deterministic || config.shape.moe.experts > 0 ||
         config.parallel.strategy == ParallelStrategy::kPipeline;
}

}  // namespace

int shared_micro_batch(const RunConfig& config) {
  if (is_one_by_one(config)) return config.micro_batch;
  return shared_micro_batch(config.global_batch, config.micro_batch);
}

int sequences_at_once(const RankWorkShares& work, const MicroBatches& share) {
  const int most = work.rounds > 0 ? most_in_a_round(share, work.rounds) : 0;
  return work.micro_batch * std::max(work.size.usual, most);
}

Result<RankWorkShares> share_work(const RunConfig& config, int ranks, std::span<const double> speeds, int times) {
  RankWorkShares work{.micro_batch = shared_micro_batch(config)};
  const int total = config.global_batch / work.micro_batch;
  work.size.usual = config.micro_batch / work.micro_batch;
  work.size.most = is_one_by_one(config) ? work.size.usual : times * work.size.usual;
  BF_ASSIGN_OR_RETURN(work.stages, stages_of(config.parallel, config.shape, config.seq, ranks, speeds));
  work.micro_batches.assign(work.stages.size(), {.first = 0, .last = total, .total = total});
  if (!work.stages.empty()) return work;
  BF_ASSIGN_OR_RETURN(work.micro_batches, divide_micro_batches(total, ranks, speeds));
  if (!sharding_of(config.parallel.strategy).gradients) return work;
  work.rounds = rounds_of(work.micro_batches, work.size);
  return work;
}

std::vector<double> parts_of_ranks(const RankWorkShares& work) {
  std::vector<double> parts(std::max(work.stages.size(), work.micro_batches.size()), 0.0);
  for (const PipelineStage& stage : work.stages) parts[static_cast<std::size_t>(stage.rank)] = stage.flops_share;
  for (std::size_t rank = 0; work.stages.empty() && rank < parts.size(); ++rank) {
    const MicroBatches& share = work.micro_batches[rank];
    parts[rank] = static_cast<double>(share.last - share.first) / share.total;
  }
  return parts;
}

double step_s(const RankWorkShares& work, std::span<const double> speeds) {
  const std::vector<double> parts = parts_of_ranks(work);
  const bool one_by_one = std::ranges::all_of(
      work.micro_batches, [&](const MicroBatches& share) { return share.last - share.first <= work.rounds; });
  if (work.rounds == 0 || one_by_one) {
    double slowest_s = 0.0;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) slowest_s = std::max(slowest_s, parts[rank] / speeds[rank]);
    return slowest_s;
  }
  double all_s = 0.0;
  for (int round = 0; round < work.rounds; ++round) {
    double slowest_s = 0.0;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const MicroBatches& share = work.micro_batches[rank];
      const int count =
          micro_batches_before(share, round + 1, work.rounds) - micro_batches_before(share, round, work.rounds);
      slowest_s = std::max(slowest_s, static_cast<double>(count) / share.total / speeds[rank]);
    }
    all_s += slowest_s;
  }
  return all_s;
}

ParameterMemory parameter_memory_of(const ParallelConfig& parallel, int ranks) {
  const bool several = ranks > 1;
  const Sharding sharding = several ? sharding_of(parallel.strategy) : Sharding{};
  // Where ranks are processes, those of one host may read each other's gradients.
  const bool may_be_read = several && parallel.engine == RankEngine::kTcp && parallel.shared_memory;
  return {.sharing = may_be_read ? GradientMemory::kShared : GradientMemory::kPrivate,
          .weights = !sharding.weights                                  ? Residency::kWhole
                     : parallel.strategy == ParallelStrategy::kPipeline ? Residency::kPart
                                                                        : Residency::kSparse,
          .gradients = sharding.gradients ? Residency::kSparse : Residency::kWhole};
}

namespace {

ShardedGradients gradients_of(const ShardMap& map, std::shared_ptr<CollectiveQueue> queue, RankWorkShares& work,
                              const Sharding& sharding, const TrainableTransformer& transformer) {
  using Exchange = ShardedGradients::Exchange;
  ShardedGradients gradients{.map = map,
                             .queue = std::move(queue),
                             .exchange = sharding.gradients ? Exchange::kMicroBatch : Exchange::kStep,
                             .shares = std::move(work.micro_batches),
                             .rounds = work.rounds};
  if (work.stages.empty()) return gradients;
  gradients.exchange = Exchange::kNone;
  if (transformer.config().tied_head) {
    gradients.open_heads = kept_micro_batches(0, static_cast<int>(work.stages.size()), gradients.shares[0].total);
  }
  return gradients;
}

}  // namespace

RankShards::RankShards(ShardMap shard_map, std::shared_ptr<CollectiveQueue> shared_queue,
                       const ParallelConfig& parallel, RankWorkShares work, Collectives& ranks,
                       TrainableTransformer& transformer)
    : collectives(ranks),
      stages(work.stages),
      map(std::move(shard_map)),
      queue(std::move(shared_queue)),
      sharding(sharding_of(parallel.strategy)),
      gradients(gradients_of(map, queue, work, sharding, transformer)),
      held(map.held(ranks.rank())),
      counted(ranks.rank() < map.group() ? map.owned(ranks.rank()) : std::vector<ParameterRange>()),
      weights(map, ranks, *queue, transformer.parameters(), sharding.weights ? AfterUse::kReleased : AfterUse::kKept,
              parallel.strategy == ParallelStrategy::kPipeline ? held : std::vector<ParameterRange>()) {}

Result<std::unique_ptr<RankShards>> make_rank_shards(const ParallelConfig& parallel, RankWorkShares work,
                                                     Collectives& collectives, TrainableTransformer& transformer) {
  BF_ASSIGN_OR_RETURN(std::shared_ptr<CollectiveQueue> queue, CollectiveQueue::create());
  ShardMap map = make_shard_map(parallel, collectives.size(), work.stages, transformer);
  return std::make_unique<RankShards>(std::move(map), std::move(queue), parallel, std::move(work), collectives,
                                      transformer);
}

}  // namespace butterfly
