// Plans written by hand. The text has one share per line, "NODE FIRST-LAST [slices FIRST-LAST]", with inclusive
// borders as tables print them; '#' begins a comment:
//
//   alpha 0-15
//   beta  16-31 slices 0-4     # beta and gamma share these layers as a tensor group
//   gamma 16-31 slices 5-7
//
// Plain values, thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/inference/reduction_slices.h"
#include "butterfly/plan/cost/share.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

struct CustomShare {
  std::string node;  // its name, its address, or its index
  int first_layer = 0;
  int last_layer = 0;  // not included
  SliceRange slices{};
};

struct CustomPlan {
  std::vector<CustomShare> shares;  // in pipeline order, members of a group one after another
};

/// Errors: kInvalidArgument naming the line.
Result<CustomPlan> parse_custom_plan(std::string_view text);

/// The shares of a plan for `layers` layers. Errors: kInvalidArgument, one sentence: a node that nobody knows or that
/// two have the name of, layers or slices that nobody has, that two have, that do not exist; the same node twice in a
/// group.
Result<std::vector<Share>> resolve(const CustomPlan& plan, int layers, const PlanCluster& cluster);

}  // namespace butterfly
