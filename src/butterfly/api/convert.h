// Between the installed library's plain types and the modules' own.
#pragma once

#include <optional>
#include <span>

#include "butterfly/machine/node.h"
#include "butterfly/node.h"
#include "butterfly/partition.h"
#include "butterfly/plan/shares/custom.h"

namespace butterfly {

inline constexpr double kGiga = 1e9;

/// Errors: kInvalidArgument for an unknown instruction set or numbers that are negative or not finite.
Result<NodeDescriptor> to_descriptor(const Node& node);

NodeCapability to_capability(const NodeDescriptor& descriptor);

/// Nothing for no shares.
std::optional<CustomPlan> custom_plan(std::span<const LayerShare> shares);

}  // namespace butterfly
