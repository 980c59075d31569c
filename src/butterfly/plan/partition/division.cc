#include "butterfly/plan/partition/division.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "butterfly/plan/pipeline/best_split.h"
#include "butterfly/plan/shares/joint_division.h"

namespace butterfly {
namespace {

constexpr int kEighth = kReductionSlices / 8;
constexpr int kAllFineMax = 3;  // members: 465 divisions

/// Every way to cut the slices into runs of whole cells of `cell` slices, one or more for each member.
void divide_rest(int members, int first, int cell, Slices& begun, std::vector<Slices>& all) {
  if (members == 1) {
    begun.push_back({first, kReductionSlices});
    all.push_back(begun);
    begun.pop_back();
    return;
  }
  for (int last = first + cell; last <= kReductionSlices - (members - 1) * cell; last += cell) {
    begun.push_back({first, last});
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

/// Everything that grows with the number of layers: a start, and what each block adds by its kind.
struct Line {
  double start = 0.0;
  std::array<double, kBlockKindsMax> each{};
  double shared = 0.0;  // less for each that shares its weights
  double at(const BlockCounts& blocks, std::size_t kinds) const {
    double value = start - blocks.shared * shared;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      if (blocks.of[kind] > 0) value += blocks.of[kind] * each[kind];
    }
    return value;
  }
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
  std::size_t kinds() const { return problem_.cost.kinds.size(); }
  /// Blocks that have experts.
  int expert_blocks(const BlockCounts& blocks) const {
    int count = 0;
    for (std::size_t kind = 0; kind < kinds(); ++kind) {
      if (!problem_.cost.kinds[kind].dense) count += blocks.of[kind];
    }
    return count;
  }

  /// Offers a division as the choice for each of `all`.
  void consider(const Slices& slices, std::span<const BlockCounts> all, GroupTable& table) const {
    std::array<MemberLines, kReductionSlices> lines;
    for (std::size_t i = 0; i < slices.size(); ++i) lines[i] = lines_of(i, slices[i]);
    const Line exchange = exchange_of(slices);
    int kept = -1;
    for (const BlockCounts& blocks : all) {
      GroupChoice made;
      bool fits = true;
      for (std::size_t i = 0; i < slices.size() && fits; ++i) {
        const double held = lines[i].bytes.at(blocks, kinds()), seconds = lines[i].time.at(blocks, kinds());
        fits = held <= members_[i].memory;
        made.time = std::max(made.time, seconds);
        made.squares += seconds * seconds;
        made.fullness = std::max(made.fullness, held / members_[i].full);
      }
      if (!fits && problem_.cost.equal_blocks()) break;  // more of the same fit less
      if (!fits) continue;
      made.time += exchange.at(blocks, kinds());
      GroupChoice& best = table.with(blocks);
      if (!better(made, best)) continue;
      if (kept < 0) {
        kept = static_cast<int>(table.divisions.size());
        table.divisions.push_back(slices);
      }
      best = made;
      best.division = kept;
    }
  }

  /// Where experts have runs of their own: the most even division, and some near it with fewer sums of experts.
  std::vector<Slices> joint_divisions(const BlockCounts& blocks, std::span<const double> slower) const {
    std::vector<Slices> made;
    if (problem_.cost.expert_borders.empty() || expert_blocks(blocks) == 0 || size() < 2) return made;
    std::vector<JointCosts> costs = joint_costs(blocks);
    if (problem_.goal == PlanGoal::kMemory) {
      std::vector<JointCosts> fullness = costs;
      for (std::size_t i = 0; i < costs.size(); ++i) {
        const auto relative = [&](double bytes) { return bytes / members_[i].full; };
        std::ranges::transform(costs[i].slices_bytes, fullness[i].slices_s.begin(), relative);
        std::ranges::transform(costs[i].experts_bytes, fullness[i].experts_s.begin(), relative);
      }
      const auto least = divide_jointly(fullness);
      if (!least) return made;
      const double fullest = slowest_s(fullness, *least);
      for (std::size_t i = 0; i < costs.size(); ++i)
        costs[i].memory = std::min(costs[i].memory, fullest * members_[i].full);
      made.push_back(*least);
    }
    const auto even = divide_jointly(costs);
    if (!even) return made;
    made.push_back(*even);
    for (const double factor : slower) {
      const auto near = fewest_expert_sums(costs, *even, factor * slowest_s(costs, *even));
      if (near && std::ranges::find(made, *near) == made.end()) made.push_back(*near);
    }
    return made;
  }

  /// The most even division with these layers, and for each factor of `slower` the one with the fewest sums to
  /// exchange among those whose slowest member takes no more than so much longer.
  std::vector<Slices> fine_divisions(const BlockCounts& layers, std::span<const double> slower) const {
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
    // Of those whose slowest member is as fast, the one whose others are the most even.
    const auto evenest =
        divide([&](int member,
                   const SliceRange& slices) { return fits(member, slices) && time_of(member, slices) <= even->first; },
               [&](int member, const SliceRange& slices) {
                 const double seconds = time_of(member, slices);
                 return seconds * seconds;
               },
               true);
    made.push_back(evenest ? evenest->second : even->second);
    for (const double factor : slower) {
      const auto near = divide(
          [&](int member, const SliceRange& slices) {
            return fits(member, slices) && time_of(member, slices) <= factor * even->first;
          },
          [](int, const SliceRange& slices) { return static_cast<double>(subtree_count(slices)); }, true);
      if (near && std::ranges::find(made, near->second) == made.end()) made.push_back(near->second);
    }
    return made;
  }

  /// The slowest member of the most even division. Nothing where none fits.
  std::optional<double> least_slowest_s(const BlockCounts& blocks) const {
    if (!problem_.cost.expert_borders.empty() && expert_blocks(blocks) > 0) {
      const std::vector<JointCosts> costs = joint_costs(blocks);
      const auto even = divide_jointly(costs);
      if (!even) return std::nullopt;
      return slowest_s(costs, *even);
    }
    const auto even = divide(
        [&](int member, const SliceRange& slices) {
          const auto i = static_cast<std::size_t>(member);
          return bytes(i, slices, blocks) <= members_[i].memory;
        },
        [&](int member, const SliceRange& slices) { return time(static_cast<std::size_t>(member), slices, blocks); });
    if (!even) return std::nullopt;
    return even->first;
  }

  /// Where each member takes the same time, with the part of everything that it has in that time.
  double any_size_s(const BlockCounts& blocks) const {
    const SliceRange none{.first = 0, .last = 0};
    double low = 0.0, high = kInfinity;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      high = std::min(high, lines_of(i, HeldSlices()).time.at(blocks, kinds()));
    }
    constexpr int kBisections = 50;
    for (int round = 0; round < kBisections && high < kInfinity; ++round) {
      const double middle = (low + high) / 2.0;
      double done = 0.0;
      for (std::size_t i = 0; i < members_.size(); ++i) {
        const double fixed = lines_of(i, HeldSlices(none)).time.at(blocks, kinds());
        const double all = lines_of(i, HeldSlices()).time.at(blocks, kinds()) - fixed;
        done += std::max(0.0, middle - fixed) / all;
      }
      (done >= 1.0 ? high : low) = middle;
    }
    return high;
  }

  /// Layers with which some member's memory decides: the fastest division for them may not be the most even one.
  bool memory_decides(const BlockCounts& layers) const {
    const double share = 1.0 / static_cast<double>(size());
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].memory < kInfinity && bytes(i, SliceRange{}, layers) * share * 2.0 > members_[i].memory)
        return true;
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
  MemberLines lines_of(std::size_t member, const HeldSlices& slices) const {
    const SliceCosts::Run& run = costs_.of(members_[member].node, slices);
    const SliceCosts::ExpertRun& experts = costs_.of_experts(members_[member].node, slices.experts);
    const unsigned ends = (ends_.embedding ? 1u : 0u) | (ends_.head ? 2u : 0u);
    MemberLines lines{.time = {.start = members_[member].embedding_s + (ends_.head ? run.head_s : 0.0)},
                      .bytes = {.start = run.start_bytes[ends], .shared = run.weight_bytes + experts.bytes}};
    for (std::size_t kind = 0; kind < kinds(); ++kind) {
      const bool dense = problem_.cost.kinds[kind].dense;
      lines.time.each[kind] = run.block_s[kind] + experts.seconds[kind];
      lines.bytes.each[kind] = run.block_bytes[kind] + (dense ? 0.0 : experts.bytes);
    }
    return lines;
  }
  double time(std::size_t member, const SliceRange& slices, const BlockCounts& layers) const {
    return lines_of(member, slices).time.at(layers, kinds());
  }
  double bytes(std::size_t member, const SliceRange& slices, const BlockCounts& layers) const {
    return lines_of(member, slices).bytes.at(layers, kinds());
  }

  std::vector<JointCosts> joint_costs(const BlockCounts& blocks) const {
    std::vector<JointCosts> all;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      JointCosts& one = all.emplace_back();
      one.memory = members_[i].memory;
      for (auto* costs : {&one.slices_s, &one.experts_s, &one.slices_bytes, &one.experts_bytes}) {
        costs->assign(ModelCost::kRuns, 0.0);
      }
      for (int first = 0; first < kReductionSlices; ++first) {
        for (int last = first + 1; last <= kReductionSlices; ++last) {
          const SliceRange run{first, last};
          const std::size_t at = ModelCost::run(run);
          const MemberLines lines = lines_of(i, {run, {0, 0}});
          const SliceCosts::ExpertRun& experts = costs_.of_experts(members_[i].node, run);
          one.slices_s[at] = lines.time.at(blocks, kinds());
          one.slices_bytes[at] = lines.bytes.at(blocks, kinds());
          one.experts_s[at] = Line{.each = experts.seconds}.at(blocks, kinds());
          one.experts_bytes[at] = expert_blocks(blocks) * experts.bytes;
        }
      }
    }
    return all;
  }

  Line exchange_of(const Slices& slices) const {
    const StageAssignment none{.first_layer = 0, .last_layer = 0, .embedding = ends_.embedding, .head = ends_.head};
    const std::vector<Share> shares = group_shares(nodes_, slices, none);
    Line line{.start = group_time(problem_, shares, costs_.step()).exchange_s};
    for (std::size_t kind = 0; kind < kinds(); ++kind) {
      BlockCounts one;
      one.of[kind] = 1;
      line.each[kind] = exchanges_s(problem_, shares, one, costs_.step());
    }
    return line;
  }

  bool better(const GroupChoice& a, const GroupChoice& b) const {
    if (b.division < 0) return true;
    if (problem_.goal == PlanGoal::kMemory && a.fullness != b.fullness) return a.fullness < b.fullness;
    return a.time < b.time || (a.time == b.time && a.squares < b.squares);
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
  if (runs.empty()) runs.resize(ModelCost::kRuns);
  Run& run = runs[ModelCost::run(slices)];
  if (run.known) return run;
  run.known = true;
  const NodeRates& rates = problem_.rates[static_cast<std::size_t>(node)];
  const ShareCost& share = problem_.cost.without_experts(slices);
  run.head_s = head_s(share, step_, rates);
  const std::uint64_t positions = problem_.load.cached_positions();
  for (std::size_t i = 0; i < problem_.cost.kinds.size(); ++i) {
    const BlockKind& kind = problem_.cost.kinds[i];
    run.block_s[i] = block_s(share, step_, rates, kind);
    run.block_bytes[i] = static_cast<double>(share.stored_bytes(kind) + share.cached_bytes_of(kind) * positions);
  }
  run.weight_bytes = static_cast<double>(share.stored_bytes(problem_.cost.kinds.front()));
  for (unsigned ends = 0; ends < 4; ++ends) {
    const StageAssignment work{.embedding = (ends & 1u) != 0, .head = (ends & 2u) != 0, .slices = slices};
    run.start_bytes[ends] = static_cast<double>(share_bytes(problem_.cost, work, problem_.load).total());
  }
  return run;
}

const SliceCosts::ExpertRun& SliceCosts::of_experts(int node, const SliceRange& slices) {
  auto& runs = expert_runs_[static_cast<std::size_t>(node)];
  if (runs.empty()) runs.resize(ModelCost::kRuns);
  ExpertRun& run = runs[ModelCost::run(slices)];
  if (run.known) return run;
  const HeldExpertsCost& cost = problem_.cost.experts(slices);
  const NodeRates& rates = problem_.rates[static_cast<std::size_t>(node)];
  run.known = true;
  run.bytes = static_cast<double>(cost.weight_bytes);
  for (std::size_t i = 0; i < problem_.cost.kinds.size(); ++i) {
    const BlockKind& kind = problem_.cost.kinds[i];
    if (!kind.dense) run.seconds[i] = experts_s(cost.experts, cost.moved_bytes, step_, rates, kind);
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
  const ModelCost& cost = costs.problem().cost;
  const std::span<const BlockCounts> all = cost.counts_of_runs;
  const int layers = cost.layers();
  const Group group(costs, nodes, ends);
  const bool fine = search == DivisionSearch::kFine;
  GroupTable table(cost);
  const bool enumerated = group.size() <= (fine ? kAllFineMax : 8);
  if (enumerated) {
    for (const Slices& slices : all_divisions(group.size(), fine)) group.consider(slices, all, table);
  }
  if (!fine) {
    const BlockCounts few = cost.counts(layers - std::max(1, layers / 4), layers);
    if (!enumerated) {
      for (const Slices& slices : group.fine_divisions(few, kSlowerFew)) group.consider(slices, all, table);
    }
    // Dear, for a search over many groups: only where it finds what fits. The groups that are chosen get it later.
    if (table.with(few).division >= 0) return table;
    for (const Slices& slices : group.joint_divisions(few, kSlowerFew)) group.consider(slices, all, table);
    return table;
  }
  for (const BlockCounts& blocks : all) {
    // Between powers of two the best division hardly changes, but where memory decides.
    const int count = blocks.total();
    const bool sampled = (count & (count - 1)) == 0 || count == layers || count <= 4;
    if (!sampled && !group.memory_decides(blocks)) continue;
    for (const Slices& slices : group.joint_divisions(blocks, kSlowerFine)) group.consider(slices, all, table);
    if (enumerated) continue;
    for (const Slices& slices : group.fine_divisions(blocks, kSlowerFine)) group.consider(slices, all, table);
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
    GroupTable table(problem.cost);
    const BlockCounts blocks = problem.cost.counts(work);
    group.consider(slices, std::span(&blocks, 1), table);
    for (const Slices& fine : group.fine_divisions(blocks, kSlowerFine)) {
      group.consider(fine, std::span(&blocks, 1), table);
    }
    for (const Slices& fine : group.joint_divisions(blocks, kSlowerFine)) {
      group.consider(fine, std::span(&blocks, 1), table);
    }
    const GroupChoice& best = table.with(blocks);
    if (best.division < 0) continue;
    std::ranges::copy(group_shares(nodes, table.divisions[static_cast<std::size_t>(best.division)], work),
                      finer.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return problem.score(finer) < problem.score(shares) ? finer : shares;
}

std::optional<DivisionBound> division_bound(const PlanningProblem& problem, std::span<const Share> shares) {
  std::optional<DivisionBound> bound;
  SliceCosts costs(problem, decode_shape(problem.load));
  for (const GroupRange& range : groups_of(shares)) {
    if (range.size() < 2) continue;
    GroupNodes nodes;
    for (const Share& share : shares.subspan(range.begin, range.size())) nodes.push_back(share.node);
    const StageAssignment& work = shares[range.begin].work;
    const Group group(costs, nodes, {.embedding = work.embedding, .head = work.head});
    const BlockCounts blocks = problem.cost.counts(work);
    const std::optional<double> least = group.least_slowest_s(blocks);
    if (!least || !(*least < kInfinity)) return std::nullopt;
    if (bound && bound->slices_s >= *least) continue;
    bound = DivisionBound{.slices_s = *least, .any_size_s = group.any_size_s(blocks)};
  }
  return bound;
}

std::vector<Share> least_missing_group(const PlanningProblem& problem, const GroupNodes& nodes) {
  StageAssignment work = problem.whole(0, problem.layers);
  const auto counts = best_split(
      static_cast<int>(nodes.size()), kReductionSlices,
      [&](int member, int first, int last) {
        work.slices = HeldSlices(first, last);
        return static_cast<double>(problem.missing_bytes(nodes[static_cast<std::size_t>(member)], work));
      },
      [](double a, double b) { return a + b; }, 1);
  Slices slices;
  for (const int count : *counts) {
    const int first = slices.empty() ? 0 : slices.back().last;
    slices.emplace_back(first, first + count);
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
