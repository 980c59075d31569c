#include "butterfly/plan/partition/group_search.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>

#include "butterfly/plan/partition/arrangement.h"
#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

constexpr int kGroupMax = 8;          // members of a group, of which every number is tried
constexpr int kFewNodes = 64;         // up to here larger groups, groups of every size and several orders are tried
constexpr double kLimitFactor = 0.6;  // from one limit on the slowest group to the next
constexpr int kLimitsMax = 16;
constexpr int kRefinements = 4;

using Order = std::vector<int>;

/// As given; fast ones first; the same by host, so that groups stay on one.
std::vector<Order> orders_of(const PlanningProblem& problem) {
  const auto speed = [&](int node) { return problem.rates[static_cast<std::size_t>(node)].weight_bytes_per_s; };
  const auto host = [&](int node) {
    const auto& hosts = problem.cluster->host_of_node;
    return hosts.empty() ? 0 : hosts[static_cast<std::size_t>(node)];
  };
  Order given(static_cast<std::size_t>(problem.nodes()));
  std::iota(given.begin(), given.end(), 0);
  Order fast = given;
  std::stable_sort(fast.begin(), fast.end(), [&](int a, int b) { return speed(a) > speed(b); });
  Order hosts = fast;
  std::stable_sort(hosts.begin(), hosts.end(), [&](int a, int b) { return host(a) < host(b); });
  std::vector<Order> orders{hosts};
  for (const Order& order : {given, fast}) {
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(order);
  }
  return orders;
}

std::vector<int> sizes_of(const PlanningProblem& problem) {
  std::vector<int> sizes;
  const bool few = problem.nodes() <= kFewNodes;
  for (int size = 1; size <= std::min(kGroupMax, problem.nodes()); ++size) {
    if (few || (size & (size - 1)) == 0) sizes.push_back(size);
  }
  if (!few) return sizes;
  for (const int size : {12, 16, 24, 32}) {
    if (size <= problem.nodes()) sizes.push_back(size);
  }
  return sizes;
}

/// One order of the nodes and one shape of a step: the best pipelines of neighbours below limits.
class Search {
 public:
  Search(const PlanningProblem& problem, const Order& order, const StepShape& step)
      : problem_(problem), order_(order), step_(step), sizes_(sizes_of(problem)) {
    SliceCosts costs(problem, step);
    for (int begin = 0; begin < problem.nodes(); ++begin) {
      for (const int size : sizes_) {
        auto& tables = tables_.emplace_back();
        if (begin + size > problem.nodes()) continue;
        for (unsigned ends = 0; ends < tables.size(); ++ends) {
          tables[ends] =
              group_table(costs, nodes_of(begin, size), {.embedding = (ends & 1u) != 0, .head = (ends & 2u) != 0},
                          DivisionSearch::kEighths);
        }
      }
    }
  }

  struct Found {
    std::vector<Share> shares;
    double limit = 0.0;  // the highest measure among its groups
  };

  /// The least sum of times and hops with every group's measure at most `limit`: its fullness where memory is the goal,
  /// else its time.
  std::optional<Found> below(double limit) {
    const int nodes = problem_.nodes(), layers = problem_.layers;
    cells_.assign(static_cast<std::size_t>(nodes + 1) * static_cast<std::size_t>(layers + 1), Cell{});
    cell(0, 0).cost = 0.0;
    for (int begin = 0; begin < nodes; ++begin) {
      for (int placed = 0; placed <= layers; ++placed) relax(begin, placed, limit);
    }
    if (cell(nodes, layers).cost == kInfinity) return std::nullopt;
    return trace_back();
  }

 private:
  struct Cell {
    double cost = kInfinity;
    std::int16_t size = 0;  // of the group that ends here; 0: the node before stands by
    std::int16_t count = 0;
  };
  struct Group {
    int begin = 0;
    int size = 0;
    int first = 0;
    int last = 0;
  };

  Cell& cell(int nodes, int placed) {
    return cells_[static_cast<std::size_t>(nodes) * static_cast<std::size_t>(problem_.layers + 1) +
                  static_cast<std::size_t>(placed)];
  }

  GroupNodes nodes_of(int begin, int size) const {
    GroupNodes nodes(order_.begin() + begin, order_.begin() + begin + size);
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  const GroupTable& table(const Group& group) const {
    const auto which = static_cast<std::size_t>(std::find(sizes_.begin(), sizes_.end(), group.size) - sizes_.begin());
    const unsigned ends = (group.first == 0 ? 1u : 0u) | (group.last == problem_.layers ? 2u : 0u);
    return tables_[static_cast<std::size_t>(group.begin) * sizes_.size() + which][ends];
  }

  const GroupChoice& choice(const Group& group) const {
    return table(group).with(problem_.cost.counts(group.first, group.last));
  }

  double measure(const GroupChoice& made) const {
    return problem_.goal == PlanGoal::kMemory ? made.fullness : made.time;
  }

  /// About what the way into a group costs; from whom exactly is not known here.
  double hop(int begin, int size, int placed) const {
    const int from = placed == 0 || begin == 0 ? kCoordinator : order_[static_cast<std::size_t>(begin - 1)];
    const double bytes = placed == 0 ? 0.0 : step_.rows * static_cast<double>(problem_.cost.row_bytes) * size;
    return transfer_s(problem_.cluster->link(from, order_[static_cast<std::size_t>(begin)]), bytes);
  }

  void relax(int begin, int placed, double limit) {
    const double before = cell(begin, placed).cost;
    if (before == kInfinity) return;
    Cell& standby = cell(begin + 1, placed);
    if (before < standby.cost) standby = {.cost = before, .size = 0, .count = 0};
    for (const int size : sizes_) {
      if (begin + size > problem_.nodes()) break;
      const double way = before + hop(begin, size, placed);
      for (int last = placed + 1; last <= problem_.layers; ++last) {
        const GroupChoice& made = choice({.begin = begin, .size = size, .first = placed, .last = last});
        if (made.division < 0 || !(measure(made) <= limit)) break;
        Cell& place = cell(begin + size, last);
        if (way + made.time >= place.cost) continue;
        place = {.cost = way + made.time,
                 .size = static_cast<std::int16_t>(size),
                 .count = static_cast<std::int16_t>(last - placed)};
      }
    }
  }

  Found trace_back() {
    std::vector<Group> groups;
    int node = problem_.nodes(), placed = problem_.layers;
    while (placed > 0) {
      const Cell& at = cell(node, placed);
      if (at.size == 0) {
        --node;
        continue;
      }
      groups.push_back({.begin = node - at.size, .size = at.size, .first = placed - at.count, .last = placed});
      node -= at.size;
      placed -= at.count;
    }
    std::reverse(groups.begin(), groups.end());
    Found found;
    for (const Group& group : groups) {
      append_group(problem_, nodes_of(group.begin, group.size), table(group), group.first, group.last, found.shares);
      found.limit = std::max(found.limit, measure(choice(group)));
    }
    return found;
  }

  const PlanningProblem& problem_;
  const Order& order_;
  const StepShape step_;
  const std::vector<int> sizes_;
  std::vector<std::array<GroupTable, 4>> tables_;  // by first node, size, and ends
  std::vector<Cell> cells_;
};

class Best {
 public:
  explicit Best(const PlanningProblem& problem) : problem_(problem) {}

  void consider(std::vector<Share> shares) {
    const double score = problem_.score(shares);
    if (!(score < least_)) return;
    least_ = score;
    shares_ = std::move(shares);
  }
  std::vector<Share> take() { return std::move(shares_); }

 private:
  const PlanningProblem& problem_;
  double least_ = kInfinity;
  std::vector<Share> shares_;
};

/// Lower and lower limits until nothing is below, then a few between the last two.
void descend(Search& search, Best& best) {
  std::optional<Search::Found> found = search.below(kInfinity);
  double low = 0.0, high = kInfinity;
  for (int i = 0; i < kLimitsMax && found; ++i) {
    high = found->limit;
    low = high * kLimitFactor;
    best.consider(std::move(found->shares));
    found = search.below(low);
  }
  for (int i = 0; i < kRefinements && high < kInfinity; ++i) {
    const double middle = (low + high) / 2.0;
    found = search.below(middle);
    (found ? high : low) = middle;
    if (found) best.consider(std::move(found->shares));
  }
}

/// Steps of the pipelines that groups of each size make; a few sizes make the same.
std::vector<StepShape> shapes_of(const PlanningProblem& problem) {
  std::vector<StepShape> shapes;
  for (int size = 1; size <= kGroupMax; size *= 2) {
    const StepShape step = goal_shape(problem, std::clamp(problem.nodes() / size, 1, problem.layers));
    if (shapes.empty() || shapes.back().rows != step.rows) shapes.push_back(step);
  }
  return shapes;
}

}  // namespace

std::vector<Share> search_groups(const PlanningProblem& problem) {
  Best best(problem);
  for (const Order& order : orders_of(problem)) {
    for (const StepShape& step : shapes_of(problem)) {
      Search search(problem, order, step);
      if (problem.goal == PlanGoal::kLatency) {
        if (auto found = search.below(kInfinity)) best.consider(std::move(found->shares));
      } else {
        descend(search, best);
      }
    }
  }
  return best.take();
}

}  // namespace butterfly
