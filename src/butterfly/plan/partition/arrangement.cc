#include "butterfly/plan/partition/arrangement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

/// One arrangement with its tables: what borders cost.
class Fit {
 public:
  Fit(const PlanningProblem& problem, const std::vector<GroupNodes>& groups, GroupTables& tables)
      : problem_(problem), groups_(groups), step_(goal_shape(problem, count())) {
    for (int g = 0; g < count(); ++g) {
      const OuterLayers ends{.embedding = g == 0, .head = g + 1 == count()};
      tables_.push_back(&tables.of(groups[static_cast<std::size_t>(g)], ends, step_));
    }
  }

  std::optional<std::vector<Share>> best() const {
    switch (problem_.goal) {
      case PlanGoal::kLatency:
        return borders(kInfinity);
      case PlanGoal::kThroughput:
        return most_tokens();
      case PlanGoal::kMemory:
        break;
    }
    return least_memory();
  }

 private:
  int count() const { return static_cast<int>(groups_.size()); }

  const GroupChoice& choice(int group, int first_layer, int last_layer) const {
    return tables_[static_cast<std::size_t>(group)]->with(problem_.cost.counts(first_layer, last_layer));
  }

  template <typename Cost, typename Combine>
  std::optional<std::vector<Share>> split(const Cost& cost, const Combine& combine) const {
    const auto counts = best_split(
        count(), problem_.layers,
        [&](int group, int first, int last) {
          const GroupChoice& made = choice(group, first, last);
          return made.division < 0 ? kInfinity : cost(made);
        },
        combine, 1);
    if (!counts) return std::nullopt;
    std::vector<Share> shares;
    int first = 0;
    for (int g = 0; g < count(); ++g) {
      const int layers = (*counts)[static_cast<std::size_t>(g)];
      const auto group = static_cast<std::size_t>(g);
      append_group(problem_, groups_[group], *tables_[group], first, first + layers, shares);
      first += layers;
    }
    return shares;
  }

  /// The least sum of times with none above the limit.
  std::optional<std::vector<Share>> borders(double limit) const {
    return split([&](const GroupChoice& made) { return made.time <= limit ? made.time : kInfinity; },
                 [](double a, double b) { return a + b; });
  }

  /// Throughput is bound by the slowest group or by the whole way, and a lower limit on the one makes the other longer:
  /// the best is where they cross, on one side of it or the other.
  std::optional<std::vector<Share>> most_tokens() const {
    std::vector<double> limits;
    for (int g = 0; g < count(); ++g) {
      for (const BlockCounts& blocks : problem_.cost.counts_of_runs) {
        const GroupChoice& made = tables_[static_cast<std::size_t>(g)]->with(blocks);
        if (made.division >= 0 && made.time < kInfinity) limits.push_back(made.time);
      }
    }
    std::sort(limits.begin(), limits.end());
    limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
    const double steps = std::ceil(static_cast<double>(problem_.load.sequences) / step_.rows);
    std::optional<std::vector<Share>> best;
    double least = kInfinity;
    std::size_t low = 0, high = limits.size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      const auto shares = borders(limits[middle]);
      if (!shares) {
        low = middle + 1;
        continue;
      }
      const double score = problem_.score(*shares);
      if (score < least) {
        least = score;
        best = shares;
      }
      // Where the whole way is the bound, a higher limit may shorten it.
      constexpr double kRounding = 1.0 + 1e-9;
      if (score * static_cast<double>(problem_.load.sequences) > kRounding * steps * limits[middle]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return best;
  }

  std::optional<std::vector<Share>> least_memory() const {
    const auto first =
        split([](const GroupChoice& made) { return made.fullness; }, [](double a, double b) { return std::max(a, b); });
    if (!first) return std::nullopt;
    const double fullest = problem_.score(*first);
    auto second = split(
        [&](const GroupChoice& made) { return made.fullness <= fullest ? std::min(made.time, 1e300) : kInfinity; },
        [](double a, double b) { return a + b; });
    return second ? second : first;
  }

  const PlanningProblem& problem_;
  const std::vector<GroupNodes>& groups_;
  const StepShape step_;
  std::vector<const GroupTable*> tables_;
};

}  // namespace

void append_group(const PlanningProblem& problem, const GroupNodes& nodes, const GroupTable& table, int first_layer,
                  int last_layer, std::vector<Share>& shares) {
  const auto division = static_cast<std::size_t>(table.with(problem.cost.counts(first_layer, last_layer)).division);
  for (const Share& share : group_shares(nodes, table.divisions[division], problem.whole(first_layer, last_layer))) {
    shares.push_back(share);
  }
}

const GroupTable& GroupTables::of(const GroupNodes& nodes, const OuterLayers& ends, const StepShape& step) {
  auto& known = known_[{nodes, ends.embedding, ends.head, step.rows}];
  if (known.choices.empty()) {
    SliceCosts& costs = costs_.try_emplace(step.rows, problem_, step).first->second;
    known = group_table(costs, nodes, ends, DivisionSearch::kFine);
  }
  return known;
}

std::optional<std::vector<Share>> fit_arrangement(const PlanningProblem& problem, const std::vector<GroupNodes>& groups,
                                                  GroupTables& tables) {
  return Fit(problem, groups, tables).best();
}

}  // namespace butterfly
