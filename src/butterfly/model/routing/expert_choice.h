// Which experts of a row count as the best: the same rule for inference and training. Plain function, thread-safe.
#pragma once

#include <span>

#include "butterfly/model/core/config.h"

namespace butterfly {

/// experts[experts_used], ascending: those of the highest `choice` [experts] among the groups of the highest score.
/// Groups are compared by their largest score or the sum of the two largest. Of equals the lower index is chosen;
/// whatever the values are, NaN too, there are experts_used of them.
void choose_highest(const MoeConfig& config, std::span<const float> choice, std::span<int> experts);

}  // namespace butterfly
