#include "butterfly/plan/partition/greedy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "butterfly/plan/partition/balanced.h"

namespace butterfly {
namespace {

/// Nodes with blocks [layer, layer + 1), as long as they are neighbours.
std::vector<Share> merge_neighbours(const PlanningProblem& problem, const std::vector<int>& node_of_layer) {
  std::vector<Share> shares;
  for (int layer = 0, first = 0; layer < problem.layers; ++layer) {
    const int node = node_of_layer[static_cast<std::size_t>(layer)];
    if (layer + 1 < problem.layers && node_of_layer[static_cast<std::size_t>(layer) + 1] == node) continue;
    shares.push_back({.node = node, .work = problem.whole(first, layer + 1)});
    first = layer + 1;
  }
  return shares;
}

/// What a node would hold with a layer more.
ShareBytes together(const ShareBytes& a, const ShareBytes& b) {
  return {.weights = a.weights + b.weights, .kv = a.kv + b.kv, .activations = std::max(a.activations, b.activations)};
}

/// Layers, the one with the most bytes of weights first: bytes and operations are in proportion.
std::vector<int> largest_first(const PlanningProblem& problem) {
  std::vector<int> layers;
  for (int layer = 0; layer < problem.layers; ++layer) layers.push_back(layer);
  const auto size = [&](int layer) {
    return share_bytes(problem.cost, problem.whole(layer, layer + 1), problem.load).weights;
  };
  std::stable_sort(layers.begin(), layers.end(), [&](int a, int b) { return size(a) > size(b); });
  return layers;
}

}  // namespace

Result<Split> split_greedy(const PlanningProblem& problem) {
  BF_TRY(check_measured(problem));
  std::vector<double> busy(problem.cluster->nodes.size(), 0.0);
  std::vector<ShareBytes> held(problem.cluster->nodes.size());
  std::vector<int> node_of_layer(static_cast<std::size_t>(problem.layers), 0);
  for (const int layer : largest_first(problem)) {
    const ShareBytes more = share_bytes(problem.cost, problem.whole(layer, layer + 1), problem.load);
    std::size_t best = 0;
    std::pair<std::uint64_t, double> least{std::numeric_limits<std::uint64_t>::max(), 0.0};
    for (std::size_t node = 0; node < held.size(); ++node) {
      const std::uint64_t needed = together(held[node], more).total();
      const std::uint64_t memory = problem.cluster->nodes[node].memory_bytes;
      const std::pair<std::uint64_t, double> rank{
          memory == 0 || needed <= memory ? 0 : needed - memory,
          busy[node] + problem.decode_s(static_cast<int>(node), layer, layer + 1)};
      if (rank >= least) continue;
      least = rank;
      best = node;
    }
    held[best] = together(held[best], more);
    busy[best] = least.second;
    node_of_layer[static_cast<std::size_t>(layer)] = static_cast<int>(best);
  }
  Split split{.shares = merge_neighbours(problem, node_of_layer)};
  split.note = fmt::format("layers may be scattered: a token visits {} stages", split.shares.size());
  return split;
}

}  // namespace butterfly
