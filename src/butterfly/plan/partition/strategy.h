// Strategies: ways to split layers over nodes, as values in one table. To add one, write its function and its line in
// strategy.cc; planning, memory checks, predictions and the command line find it there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/plan/cost/predict.h"
#include "butterfly/plan/partition/plan.h"

namespace butterfly {

/// Everything that a strategy may look at.
struct PlanningProblem : PredictionInput {
  PlanGoal goal = PlanGoal::kLatency;
  std::uint64_t seed = 1;
  const CustomPlan* custom = nullptr;
  bool all_memory_known = false;

  int nodes() const { return cluster->size(); }
  /// Time of whole blocks [first, last) on a node; the embedding belongs to layer 0 and the head to the last.
  double decode_s(int node, int first, int last) const;
  StageAssignment whole(int first, int last) const;  // all slices, with the ends that belong to it
  /// Bytes by which the node's memory falls short; 0 where it fits or is unknown.
  std::uint64_t missing_bytes(int node, const StageAssignment& work) const;
  /// Memory that all shares together lack: a node that has several needs all their bytes.
  std::uint64_t missing_bytes(std::span<const Share> shares) const;
  /// What the goal minimises; infinite where unknown.
  double score(std::span<const Share> shares) const;
  /// Bytes relative to the node's memory; themselves where some node's memory is unknown.
  double fullness(int node, std::uint64_t bytes) const;
};

/// Errors: those of make_plan() about its arguments. Cluster and options must outlive the result.
Result<PlanningProblem> planning_problem(const ModelConfig& config, const PlanCluster& cluster,
                                         const PlanOptions& options);

struct Split {
  std::vector<Share> shares;  // in pipeline order
  std::string note{};         // how good it is known to be
};

struct Strategy {
  std::string_view name;
  std::string_view alias;  // empty: none
  std::string_view summary;
  /// Shares that cover every layer and slice once. Where nothing fits it may return the split that lacks least:
  /// planning checks memory and names the node.
  Result<Split> (*split)(const PlanningProblem& problem);
  bool needs_custom = false;  // follows what the caller gives
};

std::span<const Strategy> strategies();

/// By name or alias. Errors: kInvalidArgument listing the known names.
Result<const Strategy*> find_strategy(std::string_view name);

}  // namespace butterfly
