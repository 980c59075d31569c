#include "butterfly/plan/partition/division.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "butterfly/plan/partition/best_split.h"

namespace butterfly {
namespace {

constexpr int kEighth = kReductionSlices / 8;
constexpr int kAllFineMax = 3;  // members: 465 divisions

/// Every way to cut the slices into runs of whole cells of `cell` slices, one or more for each member.
void divide_rest(int members, int first, int cell, Slices& begun, std::vector<Slices>& all) {
  if (members == 1) {
    begun.push_back({.first = first, .last = kReductionSlices});
    all.push_back(begun);
    begun.pop_back();
    return;
  }
  for (int last = first + cell; last <= kReductionSlices - (members - 1) * cell; last += cell) {
    begun.push_back({.first = first, .last = last});
    divide_rest(members - 1, last, cell, begun, all);
    begun.pop_back();
  }
}

const std::vector<Slices>& all_divisions(int members, bool fine) {
  static const auto kAll = [] {
    std::array<std::vector<Slices>, 9> eighths;
    std::array<std::vector<Slices>, kAllFineMax + 1> fine_ones;
    Slices begun;
    for (std::size_t count = 1; count < eighths.size(); ++count) {
      divide_rest(static_cast<int>(count), 0, kEighth, begun, eighths[count]);
    }
    for (std::size_t count = 1; count < fine_ones.size(); ++count) {
      divide_rest(static_cast<int>(count), 0, 1, begun, fine_ones[count]);
    }
    return std::pair(eighths, fine_ones);
  }();
  return fine ? kAll.second[static_cast<std::size_t>(members)] : kAll.first[static_cast<std::size_t>(members)];
}

/// Everything that grows with the number of layers, as a start and a slope.
struct Line {
  double start = 0.0;
  double slope = 0.0;
  double at(int count) const { return start + count * slope; }
};

/// One group: what its members cost with whichever slices, and the divisions that are worth a look.
class Group {
 public:
  Group(SliceCosts& costs, const GroupNodes& nodes, const OuterLayers& ends)
      : costs_(costs), problem_(costs.problem()), nodes_(nodes), ends_(ends) {
    for (const int node : nodes) {
      const NodeRates& rates = problem_.rates[static_cast<std::size_t>(node)];
      const std::uint64_t memory = problem_.cluster->nodes[static_cast<std::size_t>(node)].memory_bytes;
      members_.push_back({.node = node,
                          .memory = memory == 0 ? kInfinity : static_cast<double>(memory),
                          .full = problem_.all_memory_known ? static_cast<double>(memory) : 1.0,
                          .embedding_s = ends.embedding ? embedding_s(costs.step(), rates) : 0.0});
    }
  }

  int size() const { return static_cast<int>(nodes_.size()); }

  /// Offers a division as the choice for `first` to `last` layers.
  void consider(const Slices& slices, int first, int last, GroupTable& table) const {
    std::array<MemberLines, kReductionSlices> lines;
    for (std::size_t i = 0; i < slices.size(); ++i) lines[i] = lines_of(i, slices[i]);
    const Line exchange = exchange_of(slices);
    int kept = -1;
    for (int count = first; count <= last; ++count) {
      GroupChoice made;
      bool fits = true;
      for (std::size_t i = 0; i < slices.size() && fits; ++i) {
        const double held = lines[i].bytes.at(count);
        fits = held <= members_[i].memory;
        made.time = std::max(made.time, lines[i].time.at(count));
        made.fullness = std::max(made.fullness, held / members_[i].full);
      }
      if (!fits) break;
      made.time += exchange.at(count);
      GroupChoice& best = table.choices[static_cast<std::size_t>(count)];
      if (!better(made, best)) continue;
      if (kept < 0) {
        kept = static_cast<int>(table.divisions.size());
        table.divisions.push_back(slices);
      }
      best = made;
      best.division = kept;
    }
  }

  /// The most even division with `layers` layers, and for each factor of `slower` the one with the fewest sums to
  /// exchange among those whose slowest member takes no more than so much longer.
  std::vector<Slices> fine_divisions(int layers, std::span<const double> slower) const {
    std::vector<Slices> made;
    double fullest = kInfinity;
    const auto fits = [&](int member, const SliceRange& slices) {
      const auto i = static_cast<std::size_t>(member);
      const double held = bytes(i, slices, layers);
      return held <= members_[i].memory && held / members_[i].full <= fullest;
    };
    if (problem_.goal == PlanGoal::kMemory) {
      const auto least = divide(fits, [&](int member, const SliceRange& slices) {
        const auto i = static_cast<std::size_t>(member);
        return bytes(i, slices, layers) / members_[i].full;
      });
      if (!least) return made;
      fullest = least->first;
    }
    const auto time_of = [&](int member, const SliceRange& slices) {
      return time(static_cast<std::size_t>(member), slices, layers);
    };
    const auto even = divide(fits, time_of);
    if (!even) return made;
    made.push_back(even->second);
    for (const double factor : slower) {
      const auto near = divide(
          [&](int member, const SliceRange& slices) {
            return fits(member, slices) && time_of(member, slices) <= factor * even->first;
          },
          [&](int, const SliceRange& slices) { return static_cast<double>(problem_.cost.share(slices).subtrees); },
          true);
      if (near && std::ranges::find(made, near->second) == made.end()) made.push_back(near->second);
    }
    return made;
  }

  /// Layers with which some member's memory decides: the fastest division for them may not be the most even one.
  bool memory_decides(int layers) const {
    const double share = 1.0 / static_cast<double>(size());
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].memory < kInfinity && bytes(i, {}, layers) * share * 2.0 > members_[i].memory) return true;
    }
    return false;
  }

 private:
  struct Member {
    int node = 0;
    double memory = kInfinity;
    double full = 1.0;  // bytes that make a fullness of 1
    double embedding_s = 0.0;
  };

  struct MemberLines {
    Line time;
    Line bytes;
  };
  MemberLines lines_of(std::size_t member, const SliceRange& slices) const {
    const SliceCosts::Run& run = costs_.of(members_[member].node, slices);
    const unsigned ends = (ends_.embedding ? 1u : 0u) | (ends_.head ? 2u : 0u);
    return {.time = {members_[member].embedding_s + (ends_.head ? run.head_s : 0.0), run.block_s},
            .bytes = {run.start_bytes[ends], run.block_bytes}};
  }
  double time(std::size_t member, const SliceRange& slices, int layers) const {
    return lines_of(member, slices).time.at(layers);
  }
  double bytes(std::size_t member, const SliceRange& slices, int layers) const {
    return lines_of(member, slices).bytes.at(layers);
  }

  Line exchange_of(const Slices& slices) const {
    const StageAssignment none{.first_layer = 0, .last_layer = 0, .embedding = ends_.embedding, .head = ends_.head};
    const std::vector<Share> shares = group_shares(nodes_, slices, none);
    return {.start = group_time(problem_, shares, costs_.step()).exchange_s,
            .slope = problem_.cost.exchanges_of_block * exchange_s(problem_, shares, costs_.step().rows)};
  }

  bool better(const GroupChoice& a, const GroupChoice& b) const {
    if (b.division < 0) return true;
    if (problem_.goal == PlanGoal::kMemory && a.fullness != b.fullness) return a.fullness < b.fullness;
    return a.time < b.time;
  }

  /// The division with the least highest cost of a member, or with the least sum; only runs that are `allowed`.
  template <typename Allowed, typename Cost>
  std::optional<std::pair<double, Slices>> divide(const Allowed& allowed, const Cost& cost, bool sum = false) const {
    struct Place {
      double cost = kInfinity;
      int first = 0;
    };
    constexpr std::size_t kPlaces = kReductionSlices + 1;
    std::vector<std::array<Place, kPlaces>> places(static_cast<std::size_t>(size()));
    for (int member = 0; member < size(); ++member) {
      auto& own = places[static_cast<std::size_t>(member)];
      for (int first = member; first < kReductionSlices; ++first) {
        double before = first == 0 ? 0.0 : kInfinity;
        if (member > 0) before = places[static_cast<std::size_t>(member - 1)][static_cast<std::size_t>(first)].cost;
        if (before == kInfinity) continue;
        for (int last = first + 1; last <= kReductionSlices - (size() - 1 - member); ++last) {
          const SliceRange slices{first, last};
          if (!allowed(member, slices)) continue;
          const double here = cost(member, slices);
          const double total = sum ? before + here : std::max(before, here);
          Place& place = own[static_cast<std::size_t>(last)];
          if (total < place.cost) place = {.cost = total, .first = first};
        }
      }
    }
    int last = kReductionSlices;
    if (places.back().back().cost == kInfinity) return std::nullopt;
    Slices slices(nodes_.size());
    for (std::size_t member = nodes_.size(); member-- > 0;) {
      const int first = places[member][static_cast<std::size_t>(last)].first;
      slices[member] = {first, last};
      last = first;
    }
    return std::pair(places.back().back().cost, std::move(slices));
  }

  SliceCosts& costs_;
  const PlanningProblem& problem_;
  const GroupNodes& nodes_;
  const OuterLayers ends_;
  std::vector<Member> members_;
};

constexpr std::array kSlowerFine{1.0, 1.03, 1.1, 1.3, 2.0};
constexpr std::array kSlowerFew{1.0, 1.3};

}  // namespace

const SliceCosts::Run& SliceCosts::of(int node, const SliceRange& slices) {
  auto& runs = runs_[static_cast<std::size_t>(node)];
  if (runs.empty()) runs.resize(kReductionSlices * (kReductionSlices + 1) / 2);
  Run& run = runs[static_cast<std::size_t>(slices.last * (slices.last - 1) / 2 + slices.first)];
  if (run.known) return run;
  run.known = true;
  const NodeRates& rates = problem_.rates[static_cast<std::size_t>(node)];
  const ShareCost& share = problem_.cost.share(slices);
  run.block_s = block_s(share, step_, rates);
  run.head_s = head_s(share, step_, rates);
  for (unsigned ends = 0; ends < 4; ++ends) {
    StageAssignment work{.embedding = (ends & 1u) != 0, .head = (ends & 2u) != 0, .slices = slices};
    const auto start = share_bytes(problem_.cost, work, problem_.load).total();
    run.start_bytes[ends] = static_cast<double>(start);
    work.last_layer = 1;
    run.block_bytes = static_cast<double>(share_bytes(problem_.cost, work, problem_.load).total() - start);
  }
  return run;
}

std::vector<Share> group_shares(const GroupNodes& nodes, const Slices& slices, StageAssignment work) {
  std::vector<Share> shares;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    work.slices = slices[i];
    shares.push_back({.node = nodes[i], .work = work});
  }
  return shares;
}

GroupTable group_table(SliceCosts& costs, const GroupNodes& nodes, const OuterLayers& ends, DivisionSearch search) {
  const int layers = costs.problem().layers;
  const Group group(costs, nodes, ends);
  const bool fine = search == DivisionSearch::kFine;
  GroupTable table;
  table.choices.resize(static_cast<std::size_t>(layers) + 1);
  if (group.size() <= (fine ? kAllFineMax : 8)) {
    for (const Slices& slices : all_divisions(group.size(), fine)) group.consider(slices, 1, layers, table);
    return table;
  }
  if (!fine) {
    for (const Slices& slices : group.fine_divisions(std::max(1, layers / 4), kSlowerFew)) {
      group.consider(slices, 1, layers, table);
    }
    return table;
  }
  for (int count = 1; count <= layers; ++count) {
    // Between powers of two the best division hardly changes, but where memory decides.
    const bool sampled = (count & (count - 1)) == 0 || count == layers || count <= 4;
    if (!sampled && !group.memory_decides(count)) continue;
    for (const Slices& slices : group.fine_divisions(count, kSlowerFine)) group.consider(slices, 1, layers, table);
  }
  return table;
}

std::vector<Share> divide_finely(const PlanningProblem& problem, std::vector<Share> shares) {
  const std::vector<GroupRange> groups = groups_of(shares);
  SliceCosts costs(problem, goal_shape(problem, static_cast<int>(groups.size())));
  std::vector<Share> finer = shares;
  for (const GroupRange& range : groups) {
    if (range.size() < 2) continue;
    GroupNodes nodes;
    Slices slices;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      nodes.push_back(shares[i].node);
      slices.push_back(shares[i].work.slices);
    }
    const StageAssignment& work = shares[range.begin].work;
    const Group group(costs, nodes, {.embedding = work.embedding, .head = work.head});
    GroupTable table;
    table.choices.resize(static_cast<std::size_t>(problem.layers) + 1);
    group.consider(slices, work.layers(), work.layers(), table);
    for (const Slices& fine : group.fine_divisions(work.layers(), kSlowerFine)) {
      group.consider(fine, work.layers(), work.layers(), table);
    }
    const GroupChoice& best = table.with(work.layers());
    if (best.division < 0) continue;
    std::ranges::copy(group_shares(nodes, table.divisions[static_cast<std::size_t>(best.division)], work),
                      finer.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return problem.score(finer) < problem.score(shares) ? finer : shares;
}

std::vector<Share> least_missing_group(const PlanningProblem& problem, const GroupNodes& nodes) {
  StageAssignment work = problem.whole(0, problem.layers);
  const auto counts = best_split(
      static_cast<int>(nodes.size()), kReductionSlices,
      [&](int member, int first, int last) {
        work.slices = {first, last};
        return static_cast<double>(problem.missing_bytes(nodes[static_cast<std::size_t>(member)], work));
      },
      [](double a, double b) { return a + b; }, 1);
  Slices slices;
  for (const int count : *counts) {
    const int first = slices.empty() ? 0 : slices.back().last;
    slices.push_back({first, first + count});
  }
  return group_shares(nodes, slices, problem.whole(0, problem.layers));
}

StepShape goal_shape(const PlanningProblem& problem, int groups) {
  Load load = problem.load;
  load.sequences = problem.goal == PlanGoal::kThroughput
                       ? (load.sequences + static_cast<std::uint64_t>(groups) - 1) / static_cast<std::uint64_t>(groups)
                       : 1;
  return decode_shape(load);
}

}  // namespace butterfly
