// What a rank needs for a run whose state is divided among ranks: who holds what, and the weights of which it has a
// part.
#pragma once

#include <memory>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/gradients/reducer.h"
#include "butterfly/train/sharding/shard_map.h"
#include "butterfly/train/sharding/sharded_weights.h"
#include "butterfly/train/sharding/stages.h"

namespace butterfly {

/// Who holds what among `ranks` ranks. The same on every rank. `stages`: stages_of().
ShardMap make_shard_map(const ParallelConfig& parallel, int ranks, std::span<const PipelineStage> stages,
                        TrainableTransformer& transformer);

/// What of the flat arrays a rank of this run has memory for.
ParameterMemory parameter_memory_of(const ParallelConfig& parallel, int ranks);

/// How the ranks of an epoch share the work.
struct RankWorkShares {
  std::vector<MicroBatches> micro_batches{};
  std::vector<PipelineStage> stages{};
  int micro_batch = 1;  // sequences of each: shared_micro_batch() of a run
  PassSize size{};
  int rounds = 0;  // rounds_of(), where ranks go through them together
};

/// Sequences of the micro-batches that ranks share out: RunConfig::micro_batch, or where the order of sums and what is
/// balanced over a pass leave it open, a part of it.
int shared_micro_batch(const RunConfig& config);

/// Sequences that a rank of this share computes in one pass, at most.
int sequences_at_once(const RankWorkShares& work, const MicroBatches& share);

/// Of a pipeline, every rank all micro-batches. A rank computes up to `times` RunConfig::micro_batch in one pass, where
/// that is possible. Errors: those of divide_micro_batches() and stages_of().
Result<RankWorkShares> share_work(const RunConfig& config, int ranks, std::span<const double> speeds,
                                  int times = PassSize::kTimes);

/// The part of a step's work that each rank has, in rank order; their sum is 1.
std::vector<double> parts_of_ranks(const RankWorkShares& work);

/// Seconds of a step of ranks that wait for the slowest: in each round, or where a round is a micro-batch or a stage at
/// the end; `speeds` of the ranks, in steps' work a second. Exchanges and a pipeline's bubble are not counted.
double step_s(const RankWorkShares& work, std::span<const double> speeds);

struct RankShards {
  RankShards(ShardMap shard_map, std::shared_ptr<CollectiveQueue> shared_queue, const ParallelConfig& parallel,
             RankWorkShares work, Collectives& ranks, TrainableTransformer& transformer);
  /// Waits for collectives that are under way: they use what is here.
  ~RankShards() { [[maybe_unused]] const Status last = queue->wait_all(); }
  RankShards(const RankShards&) = delete;
  RankShards& operator=(const RankShards&) = delete;

  Collectives& collectives;
  const std::vector<PipelineStage> stages;
  const ShardMap map;
  const std::shared_ptr<CollectiveQueue> queue;
  const Sharding sharding;
  const ShardedGradients gradients;
  const std::vector<ParameterRange> held;     // with what this rank mirrors
  const std::vector<ParameterRange> counted;  // owned, and by no rank of another group before this one
  ShardedWeights weights;
};

/// Errors: those of CollectiveQueue.
Result<std::unique_ptr<RankShards>> make_rank_shards(const ParallelConfig& parallel, RankWorkShares work,
                                                     Collectives& collectives, TrainableTransformer& transformer);

/// A part of the flat arrays that `owned` leaves out, range by range.
template <typename Work>
void for_each_gap(const std::vector<ParameterRange>& owned, ParameterRange within, const Work& work) {
  std::int64_t begin = within.begin;
  for (const ParameterRange& range : owned) {
    if (range.end <= within.begin) continue;
    if (range.begin >= within.end) break;
    if (begin < range.begin) work(ParameterRange{.begin = begin, .end = range.begin});
    begin = range.end;
  }
  if (begin < within.end) work(ParameterRange{.begin = begin, .end = within.end});
}

}  // namespace butterfly
