// Why a split does not fit, and what would make it fit, in one sentence. Pure functions, thread-safe.
#pragma once

#include <span>

#include "butterfly/base/result.h"
#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// Errors: kNoMemory naming the node that lacks most, its shares, the missing bytes and what would do.
Status check_memory(const PlanningProblem& problem, std::span<const Share> shares);

}  // namespace butterfly
