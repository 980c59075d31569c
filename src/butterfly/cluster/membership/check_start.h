// What both kinds of cluster demand of a start request, and what it means for each share of its plan.
#pragma once

#include "butterfly/cluster/membership/cluster_session.h"

namespace butterfly {

/// Errors: kInvalidArgument for a plan that does not fit the nodes, no weight provider, or a second start.
Status check_start(const StartRequest& request, std::size_t nodes, bool started);

/// One for each share. Only for a request that check_start() accepts.
std::vector<Assignment> make_assignments(const StartRequest& request, const std::vector<NodeDescriptor>& nodes);

}  // namespace butterfly
