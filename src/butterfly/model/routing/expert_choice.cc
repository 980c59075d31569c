#include "butterfly/model/routing/expert_choice.h"

#include <algorithm>
#include <limits>

namespace butterfly {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// The `count` highest of `values` that are not marked, which marks them; of equals the lower index. Whatever the
/// values are, NaN too, there are `count` of them.
template <typename Found>
void take_highest(std::span<const float> values, std::span<bool> marked, int count, const Found& found) {
  for (int i = 0; i < count; ++i) {
    std::size_t best = values.size();
    for (std::size_t at = 0; at < values.size(); ++at) {
      if (marked[at]) continue;
      if (best == values.size() || values[at] > values[best]) best = at;
    }
    marked[best] = true;
    found(best);
  }
}

float group_score(MoeConfig::GroupScore kind, std::span<const float> group) {
  float first = group[0];
  float second = kNever;
  for (const float value : group.subspan(1)) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  return kind == MoeConfig::GroupScore::kTwoLargest ? first + second : first;
}

constexpr std::size_t kMaxExperts = 1 << 12;  // validate() refuses more

/// Marks the experts of all groups but the best.
void leave_out_groups(const MoeConfig& config, std::span<const float> choice, std::span<bool> marked) {
  if (config.groups == config.groups_used) return;
  float scores[kMaxExperts];
  bool taken[kMaxExperts] = {};
  const auto groups = static_cast<std::size_t>(config.groups);
  const std::size_t size = choice.size() / groups;
  for (std::size_t g = 0; g < groups; ++g) {
    scores[g] = group_score(config.group_score, choice.subspan(g * size, size));
  }
  take_highest(std::span(scores, groups), std::span(taken, groups), config.groups_used, [](std::size_t) {});
  for (std::size_t e = 0; e < choice.size(); ++e) marked[e] = !taken[e / size];
}

}  // namespace

void choose_highest(const MoeConfig& config, std::span<const float> choice, std::span<int> experts) {
  bool marked[kMaxExperts] = {};
  const std::span<bool> left_out(marked, choice.size());
  leave_out_groups(config, choice, left_out);
  std::size_t found = 0;
  take_highest(choice, left_out, config.experts_used,
               [&](std::size_t expert) { experts[found++] = static_cast<int>(expert); });
  std::ranges::sort(experts);
}

}  // namespace butterfly
