// Tensor groups: given its nodes, how the slices of a group are best divided among them, for every number of layers.
// Pure functions but for SliceCosts, which remembers; thread-safe but for it.
#pragma once

#include <array>
#include <vector>

#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// Indices of nodes, ascending, at most kReductionSlices; a single one is a stage of its own.
using GroupNodes = std::vector<int>;
/// What each member of a group has, in the order of its nodes.
using Slices = std::vector<SliceRange>;

/// Whether a group holds the embedding and the LM head.
struct OuterLayers {
  bool embedding = false;
  bool head = false;
};

/// What a group costs with some number of layers, its slices divided in the best way found.
struct GroupChoice {
  double time = 0.0;      // compute and exchanges of a step
  double fullness = 0.0;  // of its fullest member
  int division = -1;      // index into GroupTable::divisions; -1 where no division fits the members' memory
};

struct GroupTable {
  std::vector<Slices> divisions;
  std::vector<GroupChoice> choices;  // for 0 to problem.layers layers; entry 0 is of no use
  const GroupChoice& with(int layers) const { return choices[static_cast<std::size_t>(layers)]; }
};

/// What runs of slices cost on each node in one step: computed when first asked for.
class SliceCosts {
 public:
  struct Run {
    bool known = false;
    double block_s = 0.0;
    double head_s = 0.0;
    double block_bytes = 0.0;
    std::array<double, 4> start_bytes{};  // without blocks; by OuterLayers: embedding 1, head 2
  };

  SliceCosts(const PlanningProblem& problem, const StepShape& step)
      : problem_(problem), step_(step), runs_(static_cast<std::size_t>(problem.nodes())) {}

  const PlanningProblem& problem() const { return problem_; }
  const StepShape& step() const { return step_; }
  const Run& of(int node, const SliceRange& slices);

 private:
  const PlanningProblem& problem_;
  const StepShape step_;
  std::vector<std::vector<Run>> runs_;  // by node, then all that end at slice 1, at 2, ...
};

/// How many divisions are looked at.
enum class DivisionSearch {
  kEighths,  // all whose borders are multiples of an eighth; of more than 8 members a few fine ones
  kFine,     // of up to 3 members all; of more the most even one, and those near it with the fewest sums to exchange
};

/// The least time for every goal but memory, then fullness.
GroupTable group_table(SliceCosts& costs, const GroupNodes& nodes, const OuterLayers& ends, DivisionSearch search);

/// The shares of a group that divides its slices so.
std::vector<Share> group_shares(const GroupNodes& nodes, const Slices& slices, StageAssignment work);

/// The same groups with the same layers, the slices of each divided finely where that is better for it.
std::vector<Share> divide_finely(const PlanningProblem& problem, std::vector<Share> shares);

/// All nodes one group, the division that lacks least: for the sentence about what is missing.
std::vector<Share> least_missing_group(const PlanningProblem& problem, const GroupNodes& nodes);

/// The step that the goal looks at in a pipeline of `groups` groups: of all sequences' share for throughput, else of
/// one sequence.
StepShape goal_shape(const PlanningProblem& problem, int groups);

}  // namespace butterfly
