// What both kinds of cluster demand of a start request.
#pragma once

#include "butterfly/cluster/cluster_session.h"

namespace butterfly {

/// Errors: kInvalidArgument for a plan that does not fit the nodes, no weight provider, or a second start.
Status check_start(const StartRequest& request, std::size_t nodes, bool started);

}  // namespace butterfly
