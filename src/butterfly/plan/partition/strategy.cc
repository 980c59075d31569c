#include "butterfly/plan/partition/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "butterfly/plan/partition/balanced.h"
#include "butterfly/plan/partition/greedy.h"
#include "butterfly/plan/partition/groups.h"
#include "butterfly/plan/partition/topology.h"

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
  BF_ASSIGN_OR_RETURN(std::vector<Share> shares,
                      resolve(*problem.custom, problem.layers, *problem.cluster, problem.cost.expert_borders));
  return Split{.shares = std::move(shares)};
}

/// The best score of every other row that fits; where none fits, what lacks least.
Result<Split> split_auto(const PlanningProblem& problem);

constexpr std::array kStrategies{
    Strategy{"uniform", "sequential", "equal numbers of layers for every node", split_uniform},
    Strategy{"balanced", "", "layers by measured speed and memory: the slowest stage is as fast as possible",
             split_balanced},
    Strategy{"greedy", "", "largest layers first to the least loaded node; may scatter them", split_greedy},
    Strategy{"topology", "", "order and borders by simulated annealing over every link", split_topology},
    Strategy{"tensor", "", "every node has slices of every layer, by measured speed", split_tensor},
    Strategy{"hybrid", "", "a pipeline of tensor groups", split_hybrid},
    Strategy{"custom", "", "as a file says", split_custom, true},
    Strategy{"auto", "", "the best predicted of all for the goal", split_auto},
};

Result<Split> split_auto(const PlanningProblem& problem) {
  // Whatever fits is better than whatever does not; then the score decides, then the order of the table.
  std::optional<std::pair<std::uint64_t, double>> least;
  Result<Split> best = Split{};
  for (const Strategy& strategy : kStrategies) {
    if (strategy.needs_custom || strategy.split == split_auto) continue;
    Result<Split> split = strategy.split(problem);
    if (!split) {
      if (!least) best = std::move(split);
      continue;
    }
    const std::pair<std::uint64_t, double> rank{problem.missing_bytes(split->shares), problem.score(split->shares)};
    if (least && rank >= *least) continue;
    least = rank;
    best = std::move(split);
    best->note = fmt::format("{} is the best for {}{}{}", strategy.name, to_string(problem.goal),
                             best->note.empty() ? "" : ": ", best->note);
  }
  return best;
}

}  // namespace

Result<PlanningProblem> planning_problem(const ModelConfig& config, const PlanCluster& cluster,
                                         const PlanOptions& options) {
  PlanningProblem problem;
  BF_ASSIGN_OR_RETURN(static_cast<PredictionInput&>(problem), prediction_input(config, cluster, options));
  problem.goal = options.goal;
  problem.seed = options.seed;
  problem.custom = options.custom ? &*options.custom : nullptr;
  problem.all_memory_known = std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                                         [](const NodeDescriptor& node) { return node.memory_bytes > 0; });
  return problem;
}

double PlanningProblem::decode_s(int node, int first, int last) const {
  return share_s(cost, whole(first, last), decode_shape(load), rates[static_cast<std::size_t>(node)]);
}

StageAssignment PlanningProblem::whole(int first, int last) const {
  return {.first_layer = first, .last_layer = last, .embedding = first == 0, .head = last == layers, .slices = {}};
}

std::uint64_t PlanningProblem::missing_bytes(int node, const StageAssignment& work) const {
  const std::uint64_t memory = cluster->nodes[static_cast<std::size_t>(node)].memory_bytes;
  const std::uint64_t needed = share_bytes(cost, work, load).total();
  return memory == 0 || needed <= memory ? 0 : needed - memory;
}

std::uint64_t PlanningProblem::missing_bytes(std::span<const Share> shares) const {
  const std::vector<ShareBytes> held = node_bytes(*this, shares);
  std::uint64_t missing = 0;
  for (std::size_t node = 0; node < held.size(); ++node) {
    const std::uint64_t memory = cluster->nodes[node].memory_bytes;
    if (memory > 0 && held[node].total() > memory) missing += held[node].total() - memory;
  }
  return missing;
}

double PlanningProblem::fullness(int node, std::uint64_t bytes) const {
  const std::uint64_t memory = cluster->nodes[static_cast<std::size_t>(node)].memory_bytes;
  return static_cast<double>(bytes) / (all_memory_known ? static_cast<double>(memory) : 1.0);
}

double PlanningProblem::score(std::span<const Share> shares) const {
  switch (goal) {
    case PlanGoal::kLatency:
      return predicted_token_s(*this, shares);
    case PlanGoal::kThroughput: {
      const double rate = predicted_tokens_per_s(*this, shares);
      return rate > 0.0 ? 1.0 / rate : std::numeric_limits<double>::infinity();
    }
    case PlanGoal::kMemory:
      break;
  }
  const std::vector<ShareBytes> held = node_bytes(*this, shares);
  double fullest = 0.0;
  for (int node = 0; node < nodes(); ++node) {
    fullest = std::max(fullest, fullness(node, held[static_cast<std::size_t>(node)].total()));
  }
  return fullest;
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
