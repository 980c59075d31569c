// Pipelines of groups over many nodes: groups of neighbours in a few orders of the nodes, by dynamic programming.
// Pure function, thread-safe.
#pragma once

#include <vector>

#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// The best found; empty where nothing fits.
std::vector<Share> search_groups(const PlanningProblem& problem);

}  // namespace butterfly
