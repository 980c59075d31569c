// The strategy of the first design: no thought about neighbours. Pure function, thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// The largest layer first, each to the node that is done first with it among those with memory for it (longest
/// processing time first, https://doi.org/10.1137/0117039). Where none has memory, to the one that lacks least. Errors:
/// those of check_measured().
Result<Split> split_greedy(const PlanningProblem& problem);

}  // namespace butterfly
