// Plans written by hand. The text has one share per line, "NODE FIRST-LAST [slices FIRST-LAST] [experts FIRST-LAST]",
// with inclusive borders as tables print them; '#' begins a comment:
//
//   alpha 0-15
//   beta  16-31 slices 0-4     # beta and gamma share these layers as a tensor group
//   gamma 16-31 slices 5-31
//
// Experts go with the slices where nothing else is said. "slices 0-25 experts 0-15" gives a member the experts 0 to 15
// of each layer; "slices none" or "experts none" gives it none of these.
//
// Plain values, thread-safe.
#pragma once

#include <optional>
#include <span>
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
  std::optional<SliceRange> experts{};  // whole ones; not given: those that go with the slices
};

struct CustomPlan {
  std::vector<CustomShare> shares;  // in pipeline order, members of a group one after another
};

/// Errors: kInvalidArgument naming the line.
Result<CustomPlan> parse_custom_plan(std::string_view text);

/// The shares of a plan for `layers` layers, of which some have as many experts as `expert_borders` (as in ModelCost)
/// ends with. Errors: kInvalidArgument, one sentence: a node that nobody knows or that two have the name of; layers,
/// slices or experts that nobody has, that two have, that do not exist; experts between two of one slice; the same node
/// twice in a group.
Result<std::vector<Share>> resolve(const CustomPlan& plan, int layers, const PlanCluster& cluster,
                                   std::span<const int> expert_borders = {});

}  // namespace butterfly
