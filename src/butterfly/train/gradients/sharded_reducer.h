// Gradients of which each rank keeps the sum of its part alone (ShardMap): a reduce-scatter for each bucket, hidden
// behind the backward pass. Used by the training thread; collectives run on the queue's.
#pragma once

#include <memory>

#include "butterfly/train/gradients/reducer.h"

namespace butterfly {

/// This rank's sum of a bucket, in the flat gradients, to its mirrors, and theirs whose mirror it is to here. Adds to
/// report. Errors: those of the collectives.
Status send_to_mirrors(const ShardMap& map, Collectives& collectives, std::size_t bucket, std::span<float> gradients,
                       ReduceReport& report);

/// As many of the largest layers' gradients wait for the network while a backward pass goes on, at most.
inline constexpr int kUnitsOnTheirWay = 2;

/// How many subtrees the owner of a part holds between the rounds of a step at most.
std::size_t held_between_rounds(const std::vector<MicroBatches>& shares);

/// `options.shards` and `options.collectives` are there. Errors: kNoMemory.
Result<std::unique_ptr<GradientReducer>> make_sharded_reducer(const ReducerOptions& options);

}  // namespace butterfly
