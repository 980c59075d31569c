#include "butterfly/plan/partition/uneven_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

constexpr int kLayerBisections = 60;
constexpr double kLayersCloseEnough = 1e-9;

/// What runs of layers cost on each node, and how far a node gets within a limit.
class Runs {
 public:
  explicit Runs(const PlanningProblem& problem) : problem_(problem), step_(decode_shape(problem.load)) {
    for (int node = 0; node < problem.nodes(); ++node) {
      const NodeRates& rates = problem.rates[static_cast<std::size_t>(node)];
      Node one{.embedding_s = embedding_s(step_, rates), .head_s = head_s(problem.cost, step_, rates)};
      for (const BlockKind& kind : problem.cost.kinds) one.block_s.push_back(block_s(problem.cost, step_, rates, kind));
      // The last layer that fits the memory, by the first one.
      for (int first = 0; first < problem.layers; ++first) {
        int low = first, high = problem.layers;
        while (low < high) {
          const int middle = (low + high + 1) / 2;
          if (problem.missing_bytes(node, problem.whole(first, middle)) == 0) {
            low = middle;
          } else {
            high = middle - 1;
          }
        }
        one.held.push_back(low);
      }
      nodes_.push_back(std::move(one));
    }
  }

  int nodes() const { return problem_.nodes(); }
  int layers() const { return problem_.layers; }

  /// In the order of additions of share_s(), to be equal to what plans predict.
  double seconds(int node, int first, int last) const {
    const Node& one = nodes_[static_cast<std::size_t>(node)];
    const BlockCounts blocks = problem_.cost.counts(first, last);
    double seconds = 0.0;
    for (std::size_t kind = 0; kind < one.block_s.size(); ++kind) {
      if (blocks.of[kind] > 0) seconds += blocks.of[kind] * one.block_s[kind];
    }
    if (first == 0) seconds += one.embedding_s;
    if (last == layers()) seconds += one.head_s;
    return seconds;
  }

  bool fits(int node, int first, int last) const {
    return last <= nodes_[static_cast<std::size_t>(node)].held[static_cast<std::size_t>(first)];
  }

  /// The last layer (not included) of the longest run from `first` on that is within the limit and the memory.
  int reach(int node, int first, double limit) const {
    if (first == layers()) return first;
    int low = first, high = nodes_[static_cast<std::size_t>(node)].held[static_cast<std::size_t>(first)];
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (seconds(node, first, middle) <= limit) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

 private:
  struct Node {
    double embedding_s = 0.0, head_s = 0.0;
    std::vector<double> block_s{};  // by kind
    std::vector<int> held{};
  };
  const PlanningProblem& problem_;
  const StepShape step_;
  std::vector<Node> nodes_;
};

/// A node and the layers from where the one before ended up to `last`.
struct Run {
  int node = 0;
  int first = 0, last = 0;
};

double slowest_s(const Runs& runs, const std::vector<Run>& split) {
  double slowest = 0.0;
  for (const Run& run : split) slowest = std::max(slowest, runs.seconds(run.node, run.first, run.last));
  return slowest;
}

/// The nodes in this order, each as far as it gets.
std::optional<std::vector<Run>> in_order(const Runs& runs, const std::vector<int>& order, double limit) {
  std::vector<Run> split;
  int first = 0;
  for (const int node : order) {
    const int last = runs.reach(node, first, limit);
    if (last > first) split.push_back({.node = node, .first = first, .last = last});
    first = last;
  }
  if (first < runs.layers()) return std::nullopt;
  return split;
}

/// Over every order: of each set of nodes, how far the best order of them gets. Getting further never harms.
std::optional<std::vector<Run>> in_any_order(const Runs& runs, double limit) {
  struct Place {
    int last = 0;
    int node = -1;  // the last of them
  };
  std::vector<Place> sets(std::size_t{1} << runs.nodes());
  for (unsigned set = 1; set < sets.size(); ++set) {
    for (int node = 0; node < runs.nodes(); ++node) {
      if ((set >> node & 1u) == 0) continue;
      const int last = runs.reach(node, sets[set ^ (1u << node)].last, limit);
      if (last > sets[set].last || sets[set].node < 0) sets[set] = {.last = last, .node = node};
    }
  }
  if (sets.back().last < runs.layers()) return std::nullopt;
  std::vector<Run> split;
  for (auto set = static_cast<unsigned>(sets.size() - 1); set != 0;) {
    const Place& place = sets[set];
    set ^= 1u << place.node;
    const int first = sets[set].last;
    if (place.last > first) split.push_back({.node = place.node, .first = first, .last = place.last});
  }
  std::ranges::reverse(split);
  return split;
}

/// Orders of many nodes that are tried: as given, and by speed, either way.
std::vector<std::vector<int>> few_orders(const Runs& runs) {
  std::vector<int> given(static_cast<std::size_t>(runs.nodes()));
  std::iota(given.begin(), given.end(), 0);
  std::vector<int> fast = given;
  std::ranges::stable_sort(fast, {}, [&](int node) { return runs.seconds(node, 0, runs.layers()); });
  return {given, fast, {fast.rbegin(), fast.rend()}};
}

std::optional<std::vector<Run>> find(const Runs& runs, double limit) {
  if (runs.nodes() <= kEveryOrderMax) return in_any_order(runs, limit);
  std::optional<std::vector<Run>> best;
  for (const std::vector<int>& order : few_orders(runs)) {
    auto split = in_order(runs, order, limit);
    if (split && (!best || slowest_s(runs, *split) < slowest_s(runs, *best))) best = std::move(split);
  }
  return best;
}

/// The lowest limit within which `found(limit)` gives something, whose slowest stage `reached` tells.
std::optional<std::vector<Run>> least(const Runs& runs) {
  auto best = find(runs, kInfinity);
  if (!best) return std::nullopt;
  double low = 0.0, high = slowest_s(runs, *best);
  for (int i = 0; i < kLayerBisections && high < kInfinity && high - low > kLayersCloseEnough * high; ++i) {
    const double middle = (low + high) / 2.0;
    if (auto split = find(runs, middle)) {
      best = std::move(split);
      high = slowest_s(runs, *best);
    } else {
      low = middle;
    }
  }
  return best;
}

/// Layers that a node holds within the limit wherever it holds most.
int most(const Runs& runs, int node, double limit) {
  int count = 0;
  for (int first = 0; first < runs.layers(); ++first) {
    count = std::max(count, runs.reach(node, first, limit) - first);
  }
  return count;
}

}  // namespace

Split split_uneven_layers(const PlanningProblem& problem) {
  const Runs runs(problem);
  const auto best = least(runs);
  Split split;
  const auto add = [&](int node, int first, int last) {
    if (last > first) split.shares.push_back({.node = node, .work = problem.whole(first, last)});
  };
  const auto add_counts = [&](const std::vector<int>& counts) {
    for (int node = 0, first = 0; node < runs.nodes(); ++node) {
      const int last = first + counts[static_cast<std::size_t>(node)];
      add(node, first, last);
      first = last;
    }
  };
  const auto sum = [](double a, double b) { return a + b; };
  if (!best) {
    const auto missing = [&](int node, int first, int last) {
      return static_cast<double>(problem.missing_bytes(node, problem.whole(first, last)));
    };
    add_counts(*best_split(runs.nodes(), runs.layers(), missing, sum));
    return split;
  }
  // The order given where that is as fast, and of its splits the lightest and most even.
  const double limit = slowest_s(runs, *best);
  const auto cost = [&](int node, int first, int last) {
    const double seconds = runs.seconds(node, first, last);
    return runs.fits(node, first, last) && seconds <= limit ? seconds * (1.0 + 1e-6 * seconds / limit) : kInfinity;
  };
  if (const auto counts = best_split(runs.nodes(), runs.layers(), cost, sum)) {
    add_counts(*counts);
  } else {
    for (const Run& run : *best) add(run.node, run.first, run.last);
  }
  split.note = runs.nodes() <= kEveryOrderMax ? "no order and no borders make the slowest stage faster (proved)"
                                              : "a few orders of the nodes were tried, not all";
  return split;
}

double uneven_bound_s(const PlanningProblem& problem) {
  const Runs runs(problem);
  const auto best = least(runs);
  if (!best) return 0.0;
  double high = slowest_s(runs, *best);
  if (runs.nodes() <= kEveryOrderMax || !(high < kInfinity)) return high < kInfinity ? high : 0.0;
  double low = 0.0;
  for (int i = 0; i < kLayerBisections && high - low > kLayersCloseEnough * high; ++i) {
    const double middle = (low + high) / 2.0;
    int held = 0;
    for (int node = 0; node < runs.nodes() && held < runs.layers(); ++node) held += most(runs, node, middle);
    (held >= runs.layers() ? high : low) = middle;
  }
  return low;
}

}  // namespace butterfly
