// Strategies with tensor groups: all nodes one group, and pipelines of groups. Pure functions, thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// Every node has slices of every layer, in proportion to what it does in the time of the others; with more nodes than
/// slices, the fastest. Without a division that fits, the one that lacks least. Errors: those of check_measured().
Result<Split> split_tensor(const PlanningProblem& problem);

/// A pipeline whose stages are groups of any size. With few nodes and layers every arrangement is tried; else groups
/// are neighbours in a few orders of the nodes. Where nothing fits, what lacks least. Errors: those of
/// check_measured().
Result<Split> split_hybrid(const PlanningProblem& problem);

}  // namespace butterfly
