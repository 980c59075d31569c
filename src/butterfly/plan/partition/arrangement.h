// Pipelines of tensor groups: given which nodes form which group in which order, the best borders between groups and
// the best slices within each. Pure functions, thread-safe.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "butterfly/plan/partition/division.h"

namespace butterfly {

/// Appends the shares of a group that has `table`.
void append_group(const PlanningProblem& problem, const GroupNodes& nodes, const GroupTable& table, int first_layer,
                  int last_layer, std::vector<Share>& shares);

/// Remembers fine group_table()s for one problem. Not thread-safe.
class GroupTables {
 public:
  explicit GroupTables(const PlanningProblem& problem) : problem_(problem) {}
  const GroupTable& of(const GroupNodes& nodes, const OuterLayers& ends, const StepShape& step);

 private:
  const PlanningProblem& problem_;
  std::map<double, SliceCosts> costs_;  // by rows of the step
  std::map<std::tuple<GroupNodes, bool, bool, double>, GroupTable> known_;
};

/// The shares with the best score, every group at work. Nothing where no borders fit the memory.
std::optional<std::vector<Share>> fit_arrangement(const PlanningProblem& problem, const std::vector<GroupNodes>& groups,
                                                  GroupTables& tables);

}  // namespace butterfly
