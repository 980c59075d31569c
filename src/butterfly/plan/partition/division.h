// Tensor groups: given its nodes, how the slices of a group are best divided among them, for every number of layers.
// Pure functions but for SliceCosts, which remembers; thread-safe but for it.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/plan/partition/strategy.h"

namespace butterfly {

/// Indices of nodes, ascending, at most kReductionSlices; a single one is a stage of its own.
using GroupNodes = std::vector<int>;
/// What each member of a group has, in the order of its nodes.
using Slices = std::vector<HeldSlices>;

/// Whether a group holds the embedding and the LM head.
struct OuterLayers {
  bool embedding = false;
  bool head = false;
};

/// What a group costs with some layers, its slices divided in the best way found.
struct GroupChoice {
  double time = 0.0;      // compute and exchanges of a step
  double squares = 0.0;   // of the members' times: of equally fast ones the most even is taken
  double fullness = 0.0;  // of its fullest member
  int division = -1;      // index into GroupTable::divisions; -1 where no division fits the members' memory
};

struct GroupTable {
  std::vector<Slices> divisions;
  std::vector<GroupChoice> choices;  // by what the layers are, as in ModelCost::counts_of_runs

  GroupTable() = default;
  /// The cost must outlive it.
  explicit GroupTable(const ModelCost& cost) : choices(cost.counts_of_runs.size()), cost_(&cost) {}
  const GroupChoice& with(const BlockCounts& blocks) const { return choices[index(blocks)]; }
  GroupChoice& with(const BlockCounts& blocks) { return choices[index(blocks)]; }

 private:
  std::size_t index(const BlockCounts& blocks) const {
    return cost_->equal_blocks() ? static_cast<std::size_t>(blocks.total() - 1) : cost_->run_index(blocks);
  }
  const ModelCost* cost_ = nullptr;
};

/// What runs of slices cost on each node in one step: computed when first asked for.
class SliceCosts {
 public:
  /// Without experts.
  struct Run {
    bool known = false;
    std::array<double, kBlockKindsMax> block_s{};
    std::array<double, kBlockKindsMax> block_bytes{};
    double weight_bytes = 0.0;  // of a block, that it does not need where it shares them
    double head_s = 0.0;
    std::array<double, 4> start_bytes{};  // without blocks; by OuterLayers: embedding 1, head 2
  };
  /// What experts add to each block that has them.
  struct ExpertRun {
    bool known = false;
    std::array<double, kBlockKindsMax> seconds{};  // 0 for dense blocks
    double bytes = 0.0;
  };

  SliceCosts(const PlanningProblem& problem, const StepShape& step)
      : problem_(problem),
        step_(step),
        runs_(static_cast<std::size_t>(problem.nodes())),
        expert_runs_(static_cast<std::size_t>(problem.nodes())) {}

  const PlanningProblem& problem() const { return problem_; }
  const StepShape& step() const { return step_; }
  const Run& of(int node, const SliceRange& slices);
  const ExpertRun& of_experts(int node, const SliceRange& slices);

 private:
  const PlanningProblem& problem_;
  const StepShape step_;
  std::vector<std::vector<Run>> runs_;  // by node, then ModelCost::run()
  std::vector<std::vector<ExpertRun>> expert_runs_;
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

/// What no division of the slices can fall below, of these nodes in this order: the slowest member's part of a decode
/// step of all sequences. And what it would be if shares could have any size and memory had no end.
struct DivisionBound {
  double slices_s = 0.0;
  double any_size_s = 0.0;
};
/// Of the slowest of the groups. Nothing where no group has several members, or a speed is unknown.
std::optional<DivisionBound> division_bound(const PlanningProblem& problem, std::span<const Share> shares);

/// All nodes one group, the division that lacks least: for the sentence about what is missing.
std::vector<Share> least_missing_group(const PlanningProblem& problem, const GroupNodes& nodes);

/// The step that the goal looks at in a pipeline of `groups` groups: of all sequences' share for throughput, else of
/// one sequence.
StepShape goal_shape(const PlanningProblem& problem, int groups);

}  // namespace butterfly
