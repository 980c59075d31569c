#include "butterfly/plan/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "butterfly/plan/balanced.h"

namespace butterfly {
namespace {

/// As even as it gets, over as many nodes as there are layers.
Result<Split> split_uniform(const PlanningProblem& problem) {
  const int working = std::min(problem.nodes(), problem.layers);
  const auto border = [&](int stage) { return static_cast<int>(static_cast<long>(problem.layers) * stage / working); };
  Split split;
  for (int i = 0; i < working; ++i) {
    split.shares.push_back({.node = i, .work = problem.whole(border(i), border(i + 1))});
  }
  return split;
}

Result<Split> split_custom(const PlanningProblem& problem) {
  if (problem.custom == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "the strategy custom follows a plan of yours, none was given");
  }
  BF_ASSIGN_OR_RETURN(std::vector<Share> shares, resolve(*problem.custom, problem.layers, *problem.cluster));
  return Split{.shares = std::move(shares)};
}

constexpr std::array kStrategies{
    Strategy{"uniform", "sequential", "equal numbers of layers for every node", split_uniform},
    Strategy{"balanced", "", "layers by measured speed and memory: the slowest stage is as fast as possible",
             split_balanced},
    Strategy{"custom", "", "as a file says", split_custom, true},
};

}  // namespace

double PlanningProblem::decode_s(int node, int first, int last) const {
  return share_s(cost, whole(first, last), decode_shape(load), rates[static_cast<std::size_t>(node)]);
}

StageAssignment PlanningProblem::whole(int first, int last) const {
  return {.first_layer = first, .last_layer = last, .embedding = first == 0, .head = last == layers, .lanes = {}};
}

std::uint64_t PlanningProblem::missing_bytes(int node, const StageAssignment& work) const {
  const std::uint64_t memory = cluster->nodes[static_cast<std::size_t>(node)].memory_bytes;
  const std::uint64_t needed = share_bytes(cost, work, load).total();
  return memory == 0 || needed <= memory ? 0 : needed - memory;
}

std::uint64_t PlanningProblem::missing_bytes(std::span<const Share> shares) const {
  std::vector<std::uint64_t> needed(cluster->nodes.size(), 0);
  for (const Share& share : shares) {
    needed[static_cast<std::size_t>(share.node)] += share_bytes(cost, share.work, load).total();
  }
  std::uint64_t missing = 0;
  for (std::size_t node = 0; node < needed.size(); ++node) {
    const std::uint64_t memory = cluster->nodes[node].memory_bytes;
    if (memory > 0 && needed[node] > memory) missing += needed[node] - memory;
  }
  return missing;
}

bool PlanningProblem::memory_known() const {
  return std::all_of(cluster->nodes.begin(), cluster->nodes.end(),
                     [](const NodeDescriptor& node) { return node.memory_bytes > 0; });
}

double PlanningProblem::score(const PlanPrediction& prediction) const {
  switch (goal) {
    case PlanGoal::kLatency:
      return prediction.token_s;
    case PlanGoal::kThroughput:
      return prediction.tokens_per_s > 0.0 ? 1.0 / prediction.tokens_per_s : std::numeric_limits<double>::infinity();
    case PlanGoal::kMemory:
      break;
  }
  return memory_known() ? prediction.memory_use : static_cast<double>(prediction.memory_bytes_max);
}

std::span<const Strategy> strategies() {
  return kStrategies;
}

Result<const Strategy*> find_strategy(std::string_view name) {
  std::string known;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name == name || (!strategy.alias.empty() && strategy.alias == name)) return &strategy;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", strategy.name);
    if (!strategy.alias.empty()) known += fmt::format(" (also {})", strategy.alias);
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown split strategy '{}', known are {}", name, known);
}

}  // namespace butterfly
