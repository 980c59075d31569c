// Pipelines of tensor groups: given which nodes form which group in which order, the best borders between groups and
// the best slices within each. Exact for what it is given. Pure functions, thread-safe.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// Indices of nodes, ascending, at most kReductionSlices; a single one is a stage of its own.
using GroupNodes = std::vector<int>;

/// What a group costs with some number of layers, its slices divided in the best way.
struct GroupChoice {
  double time = 0.0;      // compute and exchanges of a step
  double fullness = 0.0;  // of its fullest member
  int division = -1;      // index into divisions_of(members); -1 where no division fits the members' memory
};

/// Ways to divide kReductionSlices slices among members, one or more for each, in order: at most 35 for any number of
/// members.
const std::vector<std::vector<SliceRange>>& divisions_of(int members);

/// Whether a group holds the embedding and the LM head.
struct OuterLayers {
  bool embedding = false;
  bool head = false;
};

/// For 0 to problem.layers layers (entry 0 is of no use). The least time for every goal but memory, then fullness.
std::vector<GroupChoice> group_choices(const PlanningProblem& problem, const GroupNodes& nodes, const OuterLayers& ends,
                                       const StepShape& step);

/// Appends the shares of a group.
void append_group(const PlanningProblem& problem, const GroupNodes& nodes, const GroupChoice& choice, int first_layer,
                  int last_layer, std::vector<Share>& shares);

/// The step that the goal looks at in a pipeline of `groups` groups: of all sequences' share for throughput, else of
/// one sequence.
StepShape goal_shape(const PlanningProblem& problem, int groups);

/// Remembers group_choices() for one problem. Not thread-safe.
class GroupChoices {
 public:
  explicit GroupChoices(const PlanningProblem& problem) : problem_(problem) {}
  const std::vector<GroupChoice>& of(const GroupNodes& nodes, const OuterLayers& ends, const StepShape& step);

 private:
  const PlanningProblem& problem_;
  std::map<std::tuple<GroupNodes, bool, bool, double>, std::vector<GroupChoice>> known_;
};

/// The shares with the best score, every group at work. Nothing where no borders fit the memory.
std::optional<std::vector<Share>> fit_arrangement(const PlanningProblem& problem, const std::vector<GroupNodes>& groups,
                                                  GroupChoices& choices);

/// All nodes one group, the division that lacks least: for the sentence about what is missing.
std::vector<Share> least_missing_group(const PlanningProblem& problem, const GroupNodes& nodes);

}  // namespace butterfly
