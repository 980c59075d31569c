#include "butterfly/train/gradients/rank_shards.h"

#include <utility>

namespace butterfly {

ShardMap make_shard_map(const ParallelConfig& parallel, int ranks, TrainableTransformer& transformer) {
  const bool hybrid = parallel.strategy == ParallelStrategy::kHybrid && parallel.shard_group > 0;
  // After a loss the ranks that remain may not be whole groups.
  const int group = hybrid && ranks % parallel.shard_group == 0 ? parallel.shard_group : ranks;
  ShardOptions options{
      .ranks = ranks, .group = group, .mirrors = parallel.mirror, .bucket_bytes = parallel.bucket_bytes};
  if (parallel.state_shares.size() == static_cast<std::size_t>(group)) options.shares = parallel.state_shares;
  return ShardMap(transformer.parameters(), transformer.units(), options);
}

ParameterMemory parameter_memory_of(const ParallelConfig& parallel, int ranks) {
  const bool several = ranks > 1;
  const Sharding sharding = several ? sharding_of(parallel.strategy) : Sharding{};
  // Where ranks are processes, those of one host may read each other's gradients.
  const bool may_be_read = several && parallel.engine == RankEngine::kTcp && parallel.shared_memory;
  return {.sharing = may_be_read ? GradientMemory::kShared : GradientMemory::kPrivate,
          .weights = sharding.weights ? Residency::kSparse : Residency::kWhole,
          .gradients = sharding.gradients ? Residency::kSparse : Residency::kWhole};
}

RankShards::RankShards(ShardMap shard_map, std::shared_ptr<CollectiveQueue> shared_queue,
                       const ParallelConfig& parallel, std::vector<MicroBatches> shares, Collectives& ranks,
                       TrainableTransformer& transformer)
    : collectives(ranks),
      map(std::move(shard_map)),
      queue(std::move(shared_queue)),
      sharding(sharding_of(parallel.strategy)),
      gradients{
          .map = map,
          .queue = queue,
          .exchange = sharding.gradients ? ShardedGradients::Exchange::kMicroBatch : ShardedGradients::Exchange::kStep,
          .shares = std::move(shares)},
      held(map.held(ranks.rank())),
      counted(ranks.rank() < map.group() ? map.owned(ranks.rank()) : std::vector<ParameterRange>()),
      weights(map, ranks, *queue, transformer.parameters(), sharding.weights ? AfterUse::kReleased : AfterUse::kKept) {}

Result<std::unique_ptr<RankShards>> make_rank_shards(const ParallelConfig& parallel, std::vector<MicroBatches> shares,
                                                     Collectives& collectives, TrainableTransformer& transformer) {
  BF_ASSIGN_OR_RETURN(std::shared_ptr<CollectiveQueue> queue, CollectiveQueue::create());
  return std::make_unique<RankShards>(make_shard_map(parallel, collectives.size(), transformer), std::move(queue),
                                      parallel, std::move(shares), collectives, transformer);
}

}  // namespace butterfly
