#include "butterfly/plan/partition/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "butterfly/plan/partition/arrangement.h"
#include "butterfly/plan/partition/balanced.h"
#include "butterfly/plan/partition/group_search.h"

namespace butterfly {
namespace {

/// Steps of dynamic programming that a plan may take to try every arrangement: about a second.
constexpr double kExactWorkMax = 3e8;

double speed(const PlanningProblem& problem, int node) {
  return problem.rates[static_cast<std::size_t>(node)].weight_bytes_per_s;
}

/// Ordered partitions of subsets of n nodes.
double arrangement_count(int nodes) {
  std::vector<double> partitions{1.0};  // Fubini numbers
  double all = 0.0;
  const auto choose = [](int n, int k) {
    double ways = 1.0;
    for (int i = 1; i <= k; ++i) ways = ways * (n - k + i) / i;
    return ways;
  };
  for (int n = 1; n <= nodes; ++n) {
    double sum = 0.0;
    for (int k = 1; k <= n; ++k) sum += choose(n, k) * partitions[static_cast<std::size_t>(n - k)];
    partitions.push_back(sum);
    all += choose(nodes, n) * sum;
  }
  return all;
}

/// Tries every arrangement of groups, each of any of the nodes.
class Exhaustive {
 public:
  explicit Exhaustive(const PlanningProblem& problem) : problem_(problem), tables_(problem) {}

  std::vector<Share> best() {
    extend((1u << problem_.nodes()) - 1);
    return std::move(best_);
  }

 private:
  void extend(unsigned unused) {
    if (!groups_.empty()) consider();
    if (static_cast<int>(groups_.size()) == problem_.layers) return;
    for (unsigned members = unused; members != 0; members = (members - 1) & unused) {
      GroupNodes nodes;
      for (int node = 0; node < problem_.nodes(); ++node) {
        if ((members >> node & 1u) != 0) nodes.push_back(node);
      }
      if (static_cast<int>(nodes.size()) > kReductionSlices) continue;
      groups_.push_back(std::move(nodes));
      extend(unused & ~members);
      groups_.pop_back();
    }
  }

  void consider() {
    auto shares = fit_arrangement(problem_, groups_, tables_);
    if (!shares) return;
    const double score = problem_.score(*shares);
    // Among equals the one with fewer shares: what does not help stands by.
    if (score > least_ || (score == least_ && shares->size() >= best_.size())) return;
    least_ = score;
    best_ = std::move(*shares);
  }

  const PlanningProblem& problem_;
  GroupTables tables_;
  std::vector<GroupNodes> groups_;
  std::vector<Share> best_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

Result<Split> split_tensor(const PlanningProblem& problem) {
  BF_TRY(check_measured(problem));
  GroupNodes nodes(static_cast<std::size_t>(problem.nodes()));
  std::iota(nodes.begin(), nodes.end(), 0);
  std::stable_sort(nodes.begin(), nodes.end(), [&](int a, int b) { return speed(problem, a) > speed(problem, b); });
  nodes.resize(std::min(nodes.size(), static_cast<std::size_t>(kReductionSlices)));
  std::sort(nodes.begin(), nodes.end());
  GroupTables tables(problem);
  Split split;
  if (auto shares = fit_arrangement(problem, {nodes}, tables)) {
    split.shares = std::move(*shares);
  } else {
    split.shares = least_missing_group(problem, nodes);
  }
  if (problem.nodes() > kReductionSlices) {
    split.note =
        fmt::format("a group has at most {} members: the fastest of {} nodes", kReductionSlices, problem.nodes());
  }
  return split;
}

Result<Split> split_hybrid(const PlanningProblem& problem) {
  BF_TRY(check_measured(problem));
  const double goal_work = problem.goal == PlanGoal::kThroughput ? 8.0 : 1.0;
  const double work =
      arrangement_count(std::min(problem.nodes(), 16)) * problem.nodes() * problem.layers * problem.layers * goal_work;
  if (work <= kExactWorkMax) {
    std::vector<Share> shares = Exhaustive(problem).best();
    if (!shares.empty()) {
      return Split{.shares = std::move(shares),
                   .note = "every order, grouping and border was tried, with the best divisions of slices"};
    }
  }
  // One group, and groups of one, are pipelines of groups too.
  std::vector<Split> candidates;
  if (work > kExactWorkMax) candidates.push_back({.shares = divide_finely(problem, search_groups(problem))});
  BF_ASSIGN_OR_RETURN(candidates.emplace_back(), split_tensor(problem));
  BF_ASSIGN_OR_RETURN(candidates.emplace_back(), split_balanced(problem));
  const auto rank = [&](const Split& split) {
    return std::pair(problem.missing_bytes(split.shares), problem.score(split.shares));
  };
  std::erase_if(candidates, [](const Split& split) { return split.shares.empty(); });
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const Split& a, const Split& b) { return rank(a) < rank(b); });
  return Split{.shares = std::move(best->shares),
               .note = "groups of neighbours in a few orders of the nodes were tried, not all"};
}

}  // namespace butterfly
