#include "butterfly/infer/deployment/plan_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace butterfly {
namespace {

std::string share_of(const Plan& plan, int node) {
  std::vector<std::string> layers;
  for (const PlannedShare& share : plan.shares) {
    if (share.node != node) continue;
    layers.push_back(fmt::format("{}-{}", share.work.first_layer, share.work.last_layer - 1));
  }
  return layers.empty() ? "none" : fmt::format("{}", fmt::join(layers, " and "));
}

}  // namespace

std::string describe_change(const Plan& before, const Plan& after, std::span<const NodeDescriptor> nodes) {
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string old_share = share_of(before, static_cast<int>(i));
    const std::string share = share_of(after, static_cast<int>(i));
    if (share != old_share)
      changes.push_back(fmt::format("{} layers {} (before: {})", nodes[i].address, share, old_share));
  }
  return changes.empty() ? "no layer moves" : fmt::format("{}", fmt::join(changes, ", "));
}

}  // namespace butterfly
