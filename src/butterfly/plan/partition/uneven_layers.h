// Whole layers to nodes where layers are not alike (dense ones before those with experts): which node stands where
// decides what it can hold. Pure functions, thread-safe.
#pragma once

#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// With up to this number of nodes, every order of them is looked at.
inline constexpr int kEveryOrderMax = 10;

/// The split with the fastest slowest stage: over every order of up to kEveryOrderMax nodes, of more over a few.
/// Without one that fits, the split in the order given that lacks least.
Split split_uneven_layers(const PlanningProblem& problem);

/// What no plan of whole layers can fall below; 0 where nothing fits. Of more nodes than kEveryOrderMax, what none
/// could even if each node stood where it can hold most.
double uneven_bound_s(const PlanningProblem& problem);

}  // namespace butterfly
