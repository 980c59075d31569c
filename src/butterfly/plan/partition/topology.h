// Whole layers over nodes whose links differ: simulated annealing over the order of the nodes and the borders between
// them (https://doi.org/10.1126/science.220.4598.671). The same seed gives the same plan everywhere. Pure function.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// Begins with what `balanced` finds and never returns worse, by the goal's score with every hop counted. Errors:
/// those of split_balanced().
Result<Split> split_topology(const PlanningProblem& problem);

}  // namespace butterfly
