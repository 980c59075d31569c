// The weights of a run whose optimizer's state is divided among ranks: each rank updates its part, and a unit's parts
// are gathered before a pass computes with it, one unit ahead of the pass. With kZero3 a unit that was used goes back
// to this rank's part of it. In a pipeline no pass asks for weights: units are gathered for what is done with the whole
// model. Collectives run on the queue's thread in the order of the calls, which is the same on
// every rank; used by the thread that trains.
#pragma once

#include <vector>

#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/train/sharding/shard_map.h"
#include "butterfly/wire/collective/collective_queue.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Whether a unit's weights stay when a pass has used them.
enum class AfterUse : std::uint8_t { kKept, kReleased };

struct GatherStats {
  std::uint64_t bytes_sent = 0, formula_bytes = 0;
  double communication_s = 0.0, exposed_s = 0.0;  // in gathers; of them, waited for
};

class ShardedWeights final : public WeightResidency {
 public:
  /// All borrowed. Of the weights, this rank's part counts; with kKept, all of them where `whole`. Units in `stays` are
  /// not released: passes compute with them where they are.
  ShardedWeights(const ShardMap& map, Collectives& collectives, CollectiveQueue& queue, ParameterSet& parameters,
                 AfterUse after_use, const std::vector<ParameterRange>& stays);

  Result<bool> acquire(int unit, Pass pass) override;
  void release(int unit) override;

  /// This rank's part has changed: all else is out of date.
  void updated();
  /// All weights are the same on every rank, and all there.
  void set_whole();

  /// Gathers what is out of date, for use outside a pass; release() each unit afterwards. Errors: those of Collectives.
  Status gather(int unit);
  /// SHA-256 of all weights as ParameterSet::hash() has it; all ranks call it. No rank holds more than a unit for it.
  Result<std::string> hash();

  /// Since the last call.
  GatherStats take_stats();
  /// Seconds that acquire() has waited since the last call.
  double take_waited_s();

 private:
  struct Unit {
    bool whole = false;
    bool fresh = true;            // others than a pass has seen
    std::uint64_t operation = 0;  // of the queue, while the unit is being gathered
  };
  void submit(int unit);
  Status run(std::size_t bucket);
  void release_pages_of(ParameterRange range);
  int after(int unit, Pass pass) const;

  const ShardMap& map_;
  Collectives& collectives_;
  CollectiveQueue& queue_;
  ParameterSet& parameters_;
  const AfterUse after_use_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;  // of each bucket
  std::vector<bool> stays_;   // each bucket
  double waited_s_ = 0.0;
  GatherStats stats_{};  // bytes and communication_s: the queue's while operations are under way
};

}  // namespace butterfly
