// What memory a rank of a run takes, by owner, before anything of it is allocated. From the same plans as the run
// itself has: of activations, of who holds what, of sums under way. Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/plan/cost/micro_batch_shares.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/gradients/rank_shards.h"
#include "butterfly/train/sharding/shard_map.h"

namespace butterfly {

struct RankMemory {
  std::uint64_t process_bytes = 0;     // without a model
  std::uint64_t weight_bytes = 0;      // between steps, as gradients and moments
  std::uint64_t gradient_bytes = 0;    // sums that wait for others among them
  std::uint64_t moment_bytes = 0;      //
  std::uint64_t activation_bytes = 0;  // of a micro-batch, and scratch
  std::uint64_t passing_bytes = 0;     // weights and gradients of others that a pass has in its hands at most
  std::uint64_t copied_bytes = 0;      // a checkpoint that is being written
  std::uint64_t first_bytes = 0;       // the most before the first step, where a rank begins with more than its part
  /// The most at any time.
  std::uint64_t peak_bytes() const;
};

class MemoryPlan {
 public:
  struct Options {
    int threads = 1;                  // of each rank
    std::uint64_t process_bytes = 0;  // of a process without a model
  };
  /// Of runs like `config`, whatever their strategy, micro-batch and recomputation. Errors: those of
  /// TrainableTransformer::create().
  static Result<MemoryPlan> create(const ModelConfig& shape, const RunConfig& config, const Options& options);

  /// Of the rank that takes most. `run` has a micro-batch and its choices made. Errors: those of
  /// share_work() and planned_activation_bytes().
  Result<RankMemory> fullest(const RunConfig& run) const;

 private:
  MemoryPlan() = default;
  RankMemory of_rank(const RunConfig& run, const ShardMap& map, const RankWorkShares& work, int rank) const;
  std::uint64_t open_heads(const RunConfig& run, int ranks) const;
  std::uint64_t passing_bytes(const RunConfig& run) const;
  std::uint64_t sums_of_others(const RunConfig& run, const std::vector<MicroBatches>& shares) const;

  ModelConfig shape_;
  Options options_;
  std::unique_ptr<TrainableTransformer> skeleton_;  // parameters without memory
  std::uint64_t flat_bytes_ = 0, largest_parameter_bytes_ = 0;
  std::uint64_t embedding_bytes_ = 0, head_bytes_ = 0;  // the parts of the first unit
  std::uint64_t layers_bytes_ = 0, largest_layer_bytes_ = 0, largest_pair_bytes_ = 0;
};

}  // namespace butterfly
