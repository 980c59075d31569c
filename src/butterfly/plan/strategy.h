// Strategies: ways to split layers over nodes, as values in one table. To add one, write its function and its line in
// strategy.cc; planning, memory checks, predictions and the command line find it there.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/node.h"
#include "butterfly/plan/cost.h"

namespace butterfly {

/// Everything that a strategy may look at.
struct PlanningProblem {
  int layers = 0;
  ModelCost cost;
  Load load;
  std::span<const NodeDescriptor> nodes;

  /// Of blocks [first, last) on a node; the embedding belongs to layer 0 and the head to the last.
  double decode_s(int node, int first, int last) const;
  std::uint64_t weight_bytes(int first, int last) const;
  std::uint64_t kv_bytes(int first, int last) const;
  /// Bytes by which the node's memory falls short; 0 where it fits or is unknown.
  std::uint64_t missing_bytes(int node, int first, int last) const;
};

struct Strategy {
  std::string_view name;
  std::string_view alias;  // empty: none
  std::string_view summary;
  /// Layers for each node in order, 0 for those that stand by; sums to problem.layers.
  Result<std::vector<int>> (*split)(const PlanningProblem& problem);
};

std::span<const Strategy> strategies();

/// By name or alias. Errors: kInvalidArgument listing the known names.
Result<const Strategy*> find_strategy(std::string_view name);

}  // namespace butterfly
