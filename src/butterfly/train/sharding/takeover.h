// How the state of a run goes from the ranks that are left of one epoch to those of the next. Plain functions.
#pragma once

#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/train/sharding/shard_map.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// A range that one rank of the new epoch has and others of it need.
struct StateMove {
  ParameterRange range{};
  int source = 0;
  std::vector<int> destinations{};  // ascending
};

/// `old_ranks`: what the ranks of the new epoch were in the old one, in their order. The same on every rank. Errors:
/// kNotFound naming an old rank of whose part no holder is left.
Result<std::vector<StateMove>> plan_takeover(const ShardMap& before, const std::vector<int>& old_ranks,
                                             const ShardMap& after);

/// Each of `arrays` is flat. All ranks call it with the same moves. Errors: those of the collectives.
Status move_state(Collectives& collectives, const std::vector<StateMove>& moves,
                  const std::vector<std::span<float>>& arrays);

}  // namespace butterfly
