#include "butterfly/plan/shares/joint_division.h"

#include <algorithm>
#include <array>

#include "butterfly/plan/cost/cost.h"
#include "butterfly/plan/pipeline/best_split.h"

namespace butterfly {
namespace {

constexpr std::size_t kPlaces = kReductionSlices + 1;
constexpr int kBisections = 40;
constexpr double kCloseEnough = 1e-6;

double at(const std::vector<double>& costs, int first, int last) {
  return costs[ModelCost::run({.first = first, .last = last})];
}

/// How far experts reach when the members so far have the slices before this place.
struct Reach {
  int experts = -1;  // -1: no division gets here
  int first_slice = 0, first_expert = 0;
};
using Reaches = std::array<Reach, kPlaces>;

/// The last slice of experts up to which `room_s` and `room_bytes` allow from `first` on.
int reach_of(const JointCosts& member, int first, double room_s, double room_bytes) {
  const auto fits = [&](int last) {
    return at(member.experts_s, first, last) <= room_s && at(member.experts_bytes, first, last) <= room_bytes;
  };
  int low = first, high = kReductionSlices;  // low fits
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Of divisions with the same slices the one that reaches further leaves less to the others: it alone counts.
std::optional<std::vector<HeldSlices>> divide_within(std::span<const JointCosts> members, double limit_s) {
  std::vector<Reaches> all(members.size());
  for (std::size_t m = 0; m < members.size(); ++m) {
    const JointCosts& member = members[m];
    const int others = static_cast<int>(members.size() - 1 - m);
    for (int first = static_cast<int>(m); first < kReductionSlices - others; ++first) {
      const int begun = m == 0 ? (first == 0 ? 0 : -1) : all[m - 1][static_cast<std::size_t>(first)].experts;
      if (begun < 0) continue;
      for (int last = first + 1; last <= kReductionSlices - others; ++last) {
        const double room_s = limit_s - at(member.slices_s, first, last);
        const double room_bytes = member.memory - at(member.slices_bytes, first, last);
        if (!(room_s >= 0.0) || room_bytes < 0.0) break;
        const int reach = reach_of(member, begun, room_s, room_bytes);
        Reach& place = all[m][static_cast<std::size_t>(last)];
        if (reach > place.experts) place = {.experts = reach, .first_slice = first, .first_expert = begun};
      }
    }
  }
  if (all.back().back().experts < kReductionSlices) return std::nullopt;
  std::vector<HeldSlices> held(members.size());
  int slice = kReductionSlices, expert = kReductionSlices;
  for (std::size_t m = members.size(); m-- > 0;) {
    const Reach& place = all[m][static_cast<std::size_t>(slice)];
    held[m] = {{place.first_slice, slice}, {place.first_expert, expert}};
    slice = place.first_slice;
    expert = place.first_expert;
  }
  return held;
}

double seconds_of(const JointCosts& member, const HeldSlices& held) {
  return member.slices_s[ModelCost::run(held)] + member.experts_s[ModelCost::run(held.experts)];
}

/// The experts divided anew so that the sum of `cost` is least and no member is above `limit_s`.
template <typename Cost>
std::optional<std::vector<HeldSlices>> divide_experts(std::span<const JointCosts> members, std::vector<HeldSlices> held,
                                                      double limit_s, const Cost& cost) {
  struct Place {
    double cost = kInfinity;
    int first = 0;
  };
  std::vector<std::array<Place, kPlaces>> places(members.size());
  for (std::size_t m = 0; m < members.size(); ++m) {
    const double room_bytes = members[m].memory - members[m].slices_bytes[ModelCost::run(held[m])];
    for (int first = 0; first <= kReductionSlices; ++first) {
      const double before =
          m == 0 ? (first == 0 ? 0.0 : kInfinity) : places[m - 1][static_cast<std::size_t>(first)].cost;
      if (before == kInfinity) continue;
      for (int last = first; last <= kReductionSlices; ++last) {
        const HeldSlices made{held[m].slices(), {first, last}};
        if (seconds_of(members[m], made) > limit_s || at(members[m].experts_bytes, first, last) > room_bytes) break;
        Place& place = places[m][static_cast<std::size_t>(last)];
        const double total = before + cost(members[m], made);
        if (total < place.cost) place = {.cost = total, .first = first};
      }
    }
  }
  if (places.back().back().cost == kInfinity) return std::nullopt;
  int last = kReductionSlices;
  for (std::size_t m = members.size(); m-- > 0;) {
    const int first = places[m][static_cast<std::size_t>(last)].first;
    held[m].experts = {first, last};
    last = first;
  }
  return held;
}

}  // namespace

double slowest_s(std::span<const JointCosts> members, std::span<const HeldSlices> held) {
  double slowest = 0.0;
  for (std::size_t m = 0; m < members.size(); ++m) slowest = std::max(slowest, seconds_of(members[m], held[m]));
  return slowest;
}

std::optional<std::vector<HeldSlices>> divide_jointly(std::span<const JointCosts> members) {
  auto best = divide_within(members, kInfinity);
  if (!best) return std::nullopt;
  double low = 0.0, high = slowest_s(members, *best);
  for (int i = 0; i < kBisections && high < kInfinity && high - low > kCloseEnough * high; ++i) {
    const double middle = (low + high) / 2.0;
    if (auto found = divide_within(members, middle)) {
      best = std::move(found);
      high = slowest_s(members, *best);
    } else {
      low = middle;
    }
  }
  auto even = divide_experts(members, *best, high, [](const JointCosts& member, const HeldSlices& held) {
    const double seconds = seconds_of(member, held);
    return seconds * seconds;
  });
  return even ? even : best;
}

std::optional<std::vector<HeldSlices>> fewest_expert_sums(std::span<const JointCosts> members,
                                                          std::vector<HeldSlices> held, double limit_s) {
  return divide_experts(members, std::move(held), limit_s, [](const JointCosts&, const HeldSlices& made) {
    return static_cast<double>(subtree_count(made.experts));
  });
}

}  // namespace butterfly
