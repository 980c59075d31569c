// Between the installed library's plain types and the modules' own.
#pragma once

#include "butterfly/machine/node.h"
#include "butterfly/node.h"

namespace butterfly {

inline constexpr double kGiga = 1e9;

/// Errors: kInvalidArgument for an unknown instruction set or numbers that are negative or not finite.
Result<NodeDescriptor> to_descriptor(const Node& node);

NodeCapability to_capability(const NodeDescriptor& descriptor);

}  // namespace butterfly
