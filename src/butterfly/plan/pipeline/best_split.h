// Contiguous borders by dynamic programming, for whatever cost: a function template, thread-safe.
#pragma once

#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace butterfly {

/// The cost of what may not be.
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The split with the least total cost over (nodes used, layers placed). `cost(node, first, last)` is what a node
/// pays for layers [first, last), infinite where it may not; where it is infinite for some `last` it must be for every
/// larger one. `combine` adds two costs. Every node gets `least` layers or more; without layers it costs nothing. Of
/// equal splits the one that gives more to earlier nodes wins. Nothing where every split is infinite.
template <typename Cost, typename Combine>
std::optional<std::vector<int>> best_split(int nodes, int layers, const Cost& cost, const Combine& combine,
                                           int least = 0) {
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
      for (int last = first + least; last <= layers; ++last) {
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

}  // namespace butterfly
