#include "butterfly/plan/partition/balanced.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "butterfly/plan/partition/uneven_layers.h"
#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

constexpr int kAllPairsMax = 12;  // nodes up to which every choice of first and last node is tried for the least sum

/// Whether a stage holds the embedding and the LM head besides its blocks.
enum EndLayers : std::uint8_t { kNeither = 0, kFirst = 1, kLast = 2, kBoth = 3 };
constexpr int kEndLayersCount = 4;

/// Times of `count` blocks with some ends on each node, and how many a limit allows.
class Capacities {
 public:
  explicit Capacities(const PlanningProblem& problem) : problem_(problem) {
    const StepShape step = decode_shape(problem.load);
    for (int node = 0; node < problem.nodes(); ++node) {
      const NodeRates& rates = problem.rates[static_cast<std::size_t>(node)];
      Times times{.block = block_s(problem.cost, step, rates, problem.cost.kinds.front()),
                  .embedding = embedding_s(step, rates),
                  .head = head_s(problem.cost, step, rates),
                  .held = {}};
      for (int ends = 0; ends < kEndLayersCount; ++ends)
        times.held[ends] = count_that_fits(node, static_cast<EndLayers>(ends));
      nodes_.push_back(times);
    }
  }

  int nodes() const { return problem_.nodes(); }
  int layers() const { return problem_.layers; }

  /// In the order of additions of share_s(), to be equal to what plans predict.
  double time(int node, int count, EndLayers ends) const {
    const Times& times = nodes_[static_cast<std::size_t>(node)];
    double seconds = count * times.block;
    if ((ends & kFirst) != 0) seconds += times.embedding;
    if ((ends & kLast) != 0) seconds += times.head;
    return seconds;
  }

  bool fits(int node, int count, EndLayers ends) const {
    return count <= nodes_[static_cast<std::size_t>(node)].held[ends];
  }

  /// The most blocks that a node runs within `limit` seconds and its memory; 0 where not even one.
  int most(int node, EndLayers ends, double limit) const {
    const Times& times = nodes_[static_cast<std::size_t>(node)];
    int count = times.held[ends];
    if (count > 0 && limit < kInfinity) {
      const double room = (limit - time(node, 0, ends)) / times.block;
      count = static_cast<int>(std::clamp(room + 1.0, 0.0, static_cast<double>(count)));
    }
    while (count > 0 && time(node, count, ends) > limit) --count;
    return count;
  }

 private:
  struct Times {
    double block = 0.0;
    double embedding = 0.0;
    double head = 0.0;
    int held[kEndLayersCount] = {};  // blocks within the memory
  };

  int count_that_fits(int node, EndLayers ends) const {
    const auto fits = [&](int count) {
      const StageAssignment work{
          .first_layer = 0, .last_layer = count, .embedding = (ends & kFirst) != 0, .head = (ends & kLast) != 0};
      return problem_.missing_bytes(node, work) == 0;
    };
    int low = 0, high = problem_.layers;  // low fits, or nothing does
    if (fits(high)) return high;
    while (high - low > 1) (fits((low + high) / 2) ? low : high) = (low + high) / 2;
    return low;
  }

  const PlanningProblem& problem_;
  std::vector<Times> nodes_;
};

struct Pair {
  int first = 0;
  int last = 0;
};

/// How many more (or fewer) blocks a node holds at an end than in the middle.
int difference(const Capacities& capacities, int node, EndLayers ends, double limit) {
  return capacities.most(node, ends, limit) - capacities.most(node, kNeither, limit);
}

bool pair_suffices(const Capacities& capacities, const Pair& pair, long middle, double limit) {
  if (capacities.most(pair.first, kFirst, limit) < 1 || capacities.most(pair.last, kLast, limit) < 1) return false;
  return middle + difference(capacities, pair.first, kFirst, limit) + difference(capacities, pair.last, kLast, limit) >=
         capacities.layers();
}

/// Nodes that lose least as first or last, the best two: one of them may be needed at the other end.
std::vector<int> best_at(const Capacities& capacities, EndLayers ends, double limit) {
  std::vector<int> best;
  for (int node = 0; node < capacities.nodes(); ++node) {
    if (capacities.most(node, ends, limit) < 1) continue;
    const int own = difference(capacities, node, ends, limit);
    auto place = best.begin();
    while (place != best.end() && difference(capacities, *place, ends, limit) >= own) ++place;
    best.insert(place, node);
    if (best.size() > 2) best.pop_back();
  }
  return best;
}

/// First and last node of a split within the limit, in whatever order; the same one where a single node does it all.
std::optional<Pair> find_pair(const Capacities& capacities, double limit) {
  long middle = 0;
  for (int node = 0; node < capacities.nodes(); ++node) {
    if (capacities.most(node, kBoth, limit) >= capacities.layers()) return Pair{.first = node, .last = node};
    middle += capacities.most(node, kNeither, limit);
  }
  if (capacities.layers() < 2) return std::nullopt;
  for (const int first : best_at(capacities, kFirst, limit)) {
    for (const int last : best_at(capacities, kLast, limit)) {
      const Pair pair{.first = first, .last = last};
      if (first != last && pair_suffices(capacities, pair, middle, limit)) return pair;
    }
  }
  return std::nullopt;
}

/// The least limit within which a split exists; infinite where memory allows none.
double least_limit(const Capacities& capacities) {
  if (!find_pair(capacities, kInfinity)) return kInfinity;
  std::vector<double> limits;
  for (int node = 0; node < capacities.nodes(); ++node) {
    for (int ends = 0; ends < kEndLayersCount; ++ends) {
      const int most = capacities.most(node, static_cast<EndLayers>(ends), kInfinity);
      for (int count = 1; count <= most; ++count)
        limits.push_back(capacities.time(node, count, static_cast<EndLayers>(ends)));
    }
  }
  std::sort(limits.begin(), limits.end());
  const auto found = std::partition_point(limits.begin(), limits.end(),
                                          [&](double limit) { return !find_pair(capacities, limit).has_value(); });
  return *found;
}

/// Least sum first; the trace of the squares decides what is left, so that equal nodes get equal shares.
double weight(double time, double limit) {
  return time * (1.0 + 1e-6 * time / limit);
}

struct Counts {
  std::vector<int> of_node;
  double weight = 0.0;
};

/// The lightest numbers of blocks with the pair at the ends: one after the other to whom it costs least, which is
/// exact as the cost of each node grows ever faster.
std::optional<Counts> fill(const Capacities& capacities, const Pair& pair, double limit) {
  const auto end_layers_of = [&](int node) {
    return static_cast<EndLayers>((node == pair.first ? kFirst : 0) | (node == pair.last ? kLast : 0));
  };
  Counts counts{.of_node = std::vector<int>(static_cast<std::size_t>(capacities.nodes()), 0)};
  std::vector<int> most;
  for (int node = 0; node < capacities.nodes(); ++node)
    most.push_back(capacities.most(node, end_layers_of(node), limit));
  const auto cost = [&](int node, int count) {
    return count == 0 ? 0.0 : weight(capacities.time(node, count, end_layers_of(node)), limit);
  };
  for (const int node : {pair.first, pair.last}) {
    const int needed = pair.first == pair.last ? capacities.layers() : 1;
    if (most[static_cast<std::size_t>(node)] < needed) return std::nullopt;
    counts.of_node[static_cast<std::size_t>(node)] = needed;
  }
  for (int placed = pair.first == pair.last ? capacities.layers() : 2; placed < capacities.layers(); ++placed) {
    int best = -1;
    double least = kInfinity;
    for (int node = 0; node < capacities.nodes(); ++node) {
      const int count = counts.of_node[static_cast<std::size_t>(node)];
      if (count >= most[static_cast<std::size_t>(node)]) continue;
      const double more = cost(node, count + 1) - cost(node, count);
      if (more < least) {
        least = more;
        best = node;
      }
    }
    if (best < 0) return std::nullopt;
    ++counts.of_node[static_cast<std::size_t>(best)];
  }
  for (int node = 0; node < capacities.nodes(); ++node) {
    counts.weight += cost(node, counts.of_node[static_cast<std::size_t>(node)]);
  }
  return counts;
}

Split in_order(const PlanningProblem& problem, const std::vector<int>& order, const std::vector<int>& counts) {
  Split split;
  int first = 0;
  for (const int node : order) {
    const int count = counts[static_cast<std::size_t>(node)];
    if (count > 0) split.shares.push_back({.node = node, .work = problem.whole(first, first + count)});
    first += count;
  }
  return split;
}

std::vector<int> given_order(int nodes, const Pair* ends) {
  std::vector<int> order;
  if (ends != nullptr) order.push_back(ends->first);
  for (int node = 0; node < nodes; ++node) {
    if (ends == nullptr || (node != ends->first && node != ends->last)) order.push_back(node);
  }
  if (ends != nullptr && ends->last != ends->first) order.push_back(ends->last);
  return order;
}

/// Any order: who is first and last matters, the others keep the order given.
Split reorder(const PlanningProblem& problem, const Capacities& capacities, double limit) {
  Pair best_pair = *find_pair(capacities, limit);
  std::optional<Counts> best = fill(capacities, best_pair, limit);
  for (int first = 0; first < capacities.nodes() && capacities.nodes() <= kAllPairsMax; ++first) {
    for (int last = 0; last < capacities.nodes(); ++last) {
      const Pair pair{.first = first, .last = last};
      std::optional<Counts> counts = fill(capacities, pair, limit);
      if (!counts || (best && counts->weight >= best->weight)) continue;
      best = std::move(counts);
      best_pair = pair;
    }
  }
  return in_order(problem, given_order(problem.nodes(), &best_pair), best->of_node);
}

EndLayers end_layers_of(int first, int last, int layers) {
  return static_cast<EndLayers>((first == 0 ? kFirst : 0) | (last == layers ? kLast : 0));
}

}  // namespace

Status check_measured(const PlanningProblem& problem) {
  for (int node = 0; node < problem.nodes(); ++node) {
    if (problem.rates[static_cast<std::size_t>(node)].known()) continue;
    const NodeDescriptor& descriptor = problem.cluster->nodes[static_cast<std::size_t>(node)];
    return make_error(ErrorCode::kInvalidArgument,
                      "balancing needs measured nodes, {} has {} GB/s of memory and {} GFLOP/s",
                      problem.cluster->name_of(node), descriptor.memory_read_gb_per_s, descriptor.fp32_gflops);
  }
  return {};
}

Result<Split> split_balanced(const PlanningProblem& problem) {
  BF_TRY(check_measured(problem));
  if (!problem.cost.equal_blocks()) return split_uneven_layers(problem);
  const Capacities capacities(problem);
  const int nodes = problem.nodes(), layers = problem.layers;
  const double limit = least_limit(capacities);
  if (limit == kInfinity) {
    // The split that lacks least: planning names its nodes and their missing bytes.
    const auto counts = best_split(
        nodes, layers,
        [&](int node, int first, int last) {
          return static_cast<double>(problem.missing_bytes(node, problem.whole(first, last)));
        },
        [](double a, double b) { return a + b; });
    return in_order(problem, given_order(nodes, nullptr), *counts);
  }
  const auto counts = best_split(
      nodes, layers,
      [&](int node, int first, int last) {
        const EndLayers ends = end_layers_of(first, last, layers);
        const double time = capacities.time(node, last - first, ends);
        return capacities.fits(node, last - first, ends) && time <= limit ? weight(time, limit) : kInfinity;
      },
      [](double a, double b) { return a + b; });
  Split split = counts ? in_order(problem, given_order(nodes, nullptr), *counts) : reorder(problem, capacities, limit);
  return Split{.shares = std::move(split.shares),
               .note = "no order and no borders make the slowest stage faster (proved)"};
}

double slowest_bound_s(const PlanningProblem& problem) {
  if (!check_measured(problem)) return 0.0;
  if (!problem.cost.equal_blocks()) return uneven_bound_s(problem);
  const double limit = least_limit(Capacities(problem));
  return std::isfinite(limit) ? limit : 0.0;
}

}  // namespace butterfly
