// What another plan changes, for people. A plain function, thread-safe.
#pragma once

#include <span>
#include <string>

#include "butterfly/machine/node.h"
#include "butterfly/plan/partition/plan.h"

namespace butterfly {

/// One clause naming each node whose layers change: "10.0.0.2:7000 layers 0-1 (before: 0-3), ...". Both plans are for
/// these nodes.
std::string describe_change(const Plan& before, const Plan& after, std::span<const NodeDescriptor> nodes);

}  // namespace butterfly
