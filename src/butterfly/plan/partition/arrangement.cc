#include "butterfly/plan/partition/arrangement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "butterfly/plan/partition/best_split.h"

namespace butterfly {
namespace {

void divide_rest(int members, int first, std::vector<SliceRange>& begun, std::vector<std::vector<SliceRange>>& all) {
  if (members == 1) {
    begun.push_back({.first = first, .last = kReductionSlices});
    all.push_back(begun);
    begun.pop_back();
    return;
  }
  for (int last = first + 1; last <= kReductionSlices - members + 1; ++last) {
    begun.push_back({.first = first, .last = last});
    divide_rest(members - 1, last, begun, all);
    begun.pop_back();
  }
}

/// Everything that grows with the number of layers, as a start and a slope.
struct Line {
  double start = 0.0;
  double slope = 0.0;
  double at(int count) const { return start + count * slope; }
};

struct MemberLines {
  Line time;
  Line bytes;
  double memory = kInfinity;
  double full = 1.0;  // bytes that make a fullness of 1
};

struct Division {
  std::vector<MemberLines> members;
  Line exchange;

  /// Nothing where a member's memory does not allow it.
  std::optional<GroupChoice> choice(int count) const {
    GroupChoice choice;
    for (const MemberLines& member : members) {
      if (member.bytes.at(count) > member.memory) return std::nullopt;
      choice.time = std::max(choice.time, member.time.at(count));
      choice.fullness = std::max(choice.fullness, member.bytes.at(count) / member.full);
    }
    choice.time += exchange.at(count);
    return choice;
  }
};

std::vector<Share> group_shares(const GroupNodes& nodes, const std::vector<SliceRange>& slices, StageAssignment work) {
  std::vector<Share> shares;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    work.slices = slices[i];
    shares.push_back({.node = nodes[i], .work = work});
  }
  return shares;
}

Division lines_of(const PlanningProblem& problem, const GroupNodes& nodes, const std::vector<SliceRange>& slices,
                  const OuterLayers& ends, const StepShape& step) {
  const StageAssignment none{.first_layer = 0, .last_layer = 0, .embedding = ends.embedding, .head = ends.head};
  StageAssignment one = none;
  one.last_layer = 1;
  Division division;
  const std::vector<Share> without = group_shares(nodes, slices, none);
  const std::vector<Share> with = group_shares(nodes, slices, one);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeRates& rates = problem.rates[static_cast<std::size_t>(nodes[i])];
    const std::uint64_t memory = problem.cluster->nodes[static_cast<std::size_t>(nodes[i])].memory_bytes;
    const auto start = static_cast<double>(share_bytes(problem.cost, without[i].work, problem.load).total());
    const auto more = static_cast<double>(share_bytes(problem.cost, with[i].work, problem.load).total());
    division.members.push_back({.time = {.start = share_s(problem.cost, without[i].work, step, rates),
                                         .slope = block_s(problem.cost.share(slices[i]), step, rates)},
                                .bytes = {.start = start, .slope = more - start},
                                .memory = memory == 0 ? kInfinity : static_cast<double>(memory),
                                .full = problem.all_memory_known ? static_cast<double>(memory) : 1.0});
  }
  division.exchange = {.start = group_time(problem, without, step).exchange_s,
                       .slope = 2.0 * exchange_s(problem, with, step.rows)};
  return division;
}

bool better(const GroupChoice& a, const GroupChoice& b, PlanGoal goal) {
  if (b.division < 0) return true;
  if (goal == PlanGoal::kMemory && a.fullness != b.fullness) return a.fullness < b.fullness;
  return a.time < b.time;
}

/// One arrangement with its tables: what borders cost.
class Fit {
 public:
  Fit(const PlanningProblem& problem, const std::vector<GroupNodes>& groups, GroupChoices& choices)
      : problem_(problem), groups_(groups), step_(goal_shape(problem, count())) {
    for (int g = 0; g < count(); ++g) {
      const OuterLayers ends{.embedding = g == 0, .head = g + 1 == count()};
      tables_.push_back(&choices.of(groups[static_cast<std::size_t>(g)], ends, step_));
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

  const GroupChoice& choice(int group, int layers) const {
    return (*tables_[static_cast<std::size_t>(group)])[static_cast<std::size_t>(layers)];
  }

  template <typename Cost, typename Combine>
  std::optional<std::vector<Share>> split(const Cost& cost, const Combine& combine) const {
    const auto counts = best_split(
        count(), problem_.layers,
        [&](int group, int first, int last) {
          const GroupChoice& made = choice(group, last - first);
          return made.division < 0 ? kInfinity : cost(made);
        },
        combine, 1);
    if (!counts) return std::nullopt;
    std::vector<Share> shares;
    int first = 0;
    for (int g = 0; g < count(); ++g) {
      const int layers = (*counts)[static_cast<std::size_t>(g)];
      append_group(problem_, groups_[static_cast<std::size_t>(g)], choice(g, layers), first, first + layers, shares);
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
      for (int layers = 1; layers <= problem_.layers; ++layers) {
        const GroupChoice& made = choice(g, layers);
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
  std::vector<const std::vector<GroupChoice>*> tables_;
};

}  // namespace

const std::vector<std::vector<SliceRange>>& divisions_of(int members) {
  static const auto kAll = [] {
    std::array<std::vector<std::vector<SliceRange>>, kReductionSlices + 1> all;
    for (int count = 1; count <= kReductionSlices; ++count) {
      std::vector<SliceRange> begun;
      divide_rest(count, 0, begun, all[static_cast<std::size_t>(count)]);
    }
    return all;
  }();
  return kAll[static_cast<std::size_t>(members)];
}

std::vector<GroupChoice> group_choices(const PlanningProblem& problem, const GroupNodes& nodes, const OuterLayers& ends,
                                       const StepShape& step) {
  std::vector<GroupChoice> choices(static_cast<std::size_t>(problem.layers) + 1);
  const auto& divisions = divisions_of(static_cast<int>(nodes.size()));
  for (std::size_t d = 0; d < divisions.size(); ++d) {
    const Division division = lines_of(problem, nodes, divisions[d], ends, step);
    for (int count = 1; count <= problem.layers; ++count) {
      std::optional<GroupChoice> made = division.choice(count);
      if (!made) break;
      made->division = static_cast<int>(d);
      GroupChoice& best = choices[static_cast<std::size_t>(count)];
      if (better(*made, best, problem.goal)) best = *made;
    }
  }
  return choices;
}

void append_group(const PlanningProblem& problem, const GroupNodes& nodes, const GroupChoice& choice, int first_layer,
                  int last_layer, std::vector<Share>& shares) {
  const auto& slices = divisions_of(static_cast<int>(nodes.size()))[static_cast<std::size_t>(choice.division)];
  for (const Share& share : group_shares(nodes, slices, problem.whole(first_layer, last_layer)))
    shares.push_back(share);
}

StepShape goal_shape(const PlanningProblem& problem, int groups) {
  Load load = problem.load;
  load.sequences = problem.goal == PlanGoal::kThroughput
                       ? (load.sequences + static_cast<std::uint64_t>(groups) - 1) / static_cast<std::uint64_t>(groups)
                       : 1;
  return decode_shape(load);
}

const std::vector<GroupChoice>& GroupChoices::of(const GroupNodes& nodes, const OuterLayers& ends,
                                                 const StepShape& step) {
  auto& known = known_[{nodes, ends.embedding, ends.head, step.rows}];
  if (known.empty()) known = group_choices(problem_, nodes, ends, step);
  return known;
}

std::optional<std::vector<Share>> fit_arrangement(const PlanningProblem& problem, const std::vector<GroupNodes>& groups,
                                                  GroupChoices& choices) {
  return Fit(problem, groups, choices).best();
}

std::vector<Share> least_missing_group(const PlanningProblem& problem, const GroupNodes& nodes) {
  std::vector<Share> best;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const std::vector<SliceRange>& slices : divisions_of(static_cast<int>(nodes.size()))) {
    std::vector<Share> shares = group_shares(nodes, slices, problem.whole(0, problem.layers));
    const std::uint64_t missing = problem.missing_bytes(shares);
    if (missing >= least) continue;
    least = missing;
    best = std::move(shares);
  }
  return best;
}

}  // namespace butterfly
