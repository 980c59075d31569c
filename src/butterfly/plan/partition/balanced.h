// Whole layers to nodes so that the slowest stage is as fast as it can be: exact, over every order of the nodes, for
// any number of them. Stages of equal blocks make it simple: within a time limit a node holds the same number of blocks
// wherever it stands, only the first (embedding) and the last (head) hold others. Models whose layers are not alike:
// uneven_layers.h. Pure functions, thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// The least slowest stage; among the splits that reach it, the order given where that can, the least sum over stages
/// and then the most even. Without one that fits, the split in the order given that lacks least. Errors:
/// kInvalidArgument for nodes whose speed is unknown.
Result<Split> split_balanced(const PlanningProblem& problem);

/// Errors: kInvalidArgument naming a node whose speed is unknown, without which nothing can be balanced.
Status check_measured(const PlanningProblem& problem);

/// What no plan of whole layers can fall below: the slowest stage of the best split, memory respected. 0 where it is
/// unknown or nothing fits.
double slowest_bound_s(const PlanningProblem& problem);

}  // namespace butterfly
