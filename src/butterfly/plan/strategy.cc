#include "butterfly/plan/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>

namespace butterfly {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// As even as it gets, over as many nodes as there are layers.
Result<std::vector<int>> split_uniform(const PlanningProblem& problem) {
  const int nodes = static_cast<int>(problem.nodes.size());
  const int working = std::min(nodes, problem.layers);
  std::vector<int> counts(static_cast<std::size_t>(nodes), 0);
  for (int i = 0; i < working; ++i) {
    const auto border = [&](int stage) {
      return static_cast<int>(static_cast<long>(problem.layers) * stage / working);
    };
    counts[static_cast<std::size_t>(i)] = border(i + 1) - border(i);
  }
  return counts;
}

/// The split with the least total cost, by dynamic programming over (nodes used, layers placed). `cost(node, first,
/// last)` is what a node pays for layers [first, last), infinite where it may not; it must not fall when `last`
/// grows from an infinite value. `combine` adds two costs. Nodes without layers cost nothing. Of equal splits the one
/// that gives more to earlier nodes wins. Nothing where every split is infinite.
template <typename Cost, typename Combine>
std::optional<std::vector<int>> best_split(int nodes, int layers, const Cost& cost, const Combine& combine) {
  const auto columns = static_cast<std::size_t>(layers) + 1;
  std::vector<double> best(columns, kInfinity);  // of the nodes so far, by layers placed
  best[0] = 0.0;
  std::vector<std::vector<int>> taken;
  for (int node = 0; node < nodes; ++node) {
    std::vector<double> next(columns, kInfinity);
    std::vector<int> counts(columns, 0);
    for (int first = layers; first >= 0; --first) {
      const double before = best[static_cast<std::size_t>(first)];
      if (before == kInfinity) continue;
      for (int last = first; last <= layers; ++last) {
        const double own = last == first ? 0.0 : cost(node, first, last);
        if (own == kInfinity) break;
        const double total = combine(before, own);
        double& place = next[static_cast<std::size_t>(last)];
        if (total < place) {
          place = total;
          counts[static_cast<std::size_t>(last)] = last - first;
        }
      }
    }
    best = std::move(next);
    taken.push_back(std::move(counts));
  }
  if (best.back() == kInfinity) return std::nullopt;
  std::vector<int> counts(static_cast<std::size_t>(nodes));
  int last = layers;
  for (int node = nodes - 1; node >= 0; --node) {
    const int count = taken[static_cast<std::size_t>(node)][static_cast<std::size_t>(last)];
    counts[static_cast<std::size_t>(node)] = count;
    last -= count;
  }
  return counts;
}

/// Bytes are whole numbers below 2^53 here: sums in double are exact.
double add(double a, double b) {
  return a + b;
}

/// The smallest possible slowest stage. Among splits that reach it, the least sum over stages (the latency of one
/// request); a trace of the squares decides what is left, so that equal nodes get equal shares.
Result<std::vector<int>> split_balanced(const PlanningProblem& problem) {
  const int nodes = static_cast<int>(problem.nodes.size());
  for (const NodeDescriptor& node : problem.nodes) {
    if (node.memory_read_gb_per_s > 0.0 && node.fp32_gflops > 0.0) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "balancing needs measured nodes, {} has {} GB/s of memory and {} GFLOP/s", node.name,
                      node.memory_read_gb_per_s, node.fp32_gflops);
  }
  const auto fits = [&](int node, int first, int last) { return problem.missing_bytes(node, first, last) == 0; };
  const auto slowest = best_split(
      nodes, problem.layers,
      [&](int node, int first, int last) {
        return fits(node, first, last) ? problem.decode_s(node, first, last) : kInfinity;
      },
      [](double a, double b) { return std::max(a, b); });
  if (!slowest) {
    // The split that lacks least: make_plan names its nodes and their missing bytes.
    return *best_split(
        nodes, problem.layers,
        [&](int node, int first, int last) { return static_cast<double>(problem.missing_bytes(node, first, last)); },
        add);
  }
  double limit = 0.0;
  for (int node = 0, first = 0; node < nodes; ++node) {
    const int count = (*slowest)[static_cast<std::size_t>(node)];
    if (count > 0) limit = std::max(limit, problem.decode_s(node, first, first + count));
    first += count;
  }
  return *best_split(
      nodes, problem.layers,
      [&](int node, int first, int last) {
        const double time = fits(node, first, last) ? problem.decode_s(node, first, last) : kInfinity;
        return time <= limit ? time * (1.0 + 1e-6 * time / limit) : kInfinity;
      },
      add);
}

constexpr std::array kStrategies{
    Strategy{"uniform", "sequential", "equal numbers of layers for every node", split_uniform},
    Strategy{"balanced", "", "layers by measured speed and memory: the slowest stage is as fast as possible",
             split_balanced},
};

}  // namespace

double PlanningProblem::decode_s(int node, int first, int last) const {
  const NodeDescriptor& descriptor = nodes[static_cast<std::size_t>(node)];
  double time = (last - first) * block_decode_s(cost, load, descriptor);
  if (first == 0) time += embedding_decode_s(cost, load, descriptor);
  if (last == layers) time += head_decode_s(cost, load, descriptor);
  return time;
}

std::uint64_t PlanningProblem::weight_bytes(int first, int last) const {
  std::uint64_t bytes = static_cast<std::uint64_t>(last - first) * cost.block.weight_bytes;
  if (first == 0) bytes += cost.embedding.weight_bytes;
  if (last == layers) bytes += cost.head.weight_bytes;
  if (first == 0 && last == layers) bytes -= cost.tied_bytes;
  return bytes;
}

std::uint64_t PlanningProblem::kv_bytes(int first, int last) const {
  return static_cast<std::uint64_t>(last - first) * cost.kv_bytes * load.context * load.sequences;
}

std::uint64_t PlanningProblem::missing_bytes(int node, int first, int last) const {
  const std::uint64_t memory = nodes[static_cast<std::size_t>(node)].memory_bytes;
  const std::uint64_t needed = weight_bytes(first, last) + kv_bytes(first, last);
  return memory == 0 || needed <= memory ? 0 : needed - memory;
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
