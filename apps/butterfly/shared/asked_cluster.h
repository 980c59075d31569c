// A cluster as its running workers describe themselves and measure their links.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/plan/description/cluster_model.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly::app {

/// Waits for workers that still measure their speed, a minute at most. Without credentials they measure no links to
/// each other for a program that they do not know: those are taken to be like the slower one of both to here. Errors:
/// those of ask_status(), ask_links() and measure_link(); kInvalidArgument where an address is no worker's.
Result<PlanCluster> ask_cluster(const std::vector<std::string>& addresses, const NodeAccess& access);

}  // namespace butterfly::app
