#include "butterfly/cluster/membership/check_start.h"

#include <fmt/ranges.h>

#include <map>
#include <set>

#include "butterfly/plan/shares/share_groups.h"

namespace butterfly {

Status check_start(const StartRequest& request, std::size_t nodes, bool started) {
  const Plan& plan = request.plan;
  if (started) return make_error(ErrorCode::kInvalidArgument, "a session starts once, this one has started");
  if (!request.weights) return make_error(ErrorCode::kInvalidArgument, "a session without a provider of weights");
  if (plan.shares.empty()) return make_error(ErrorCode::kInvalidArgument, "a plan of no stages");
  std::map<int, int> stages_of_node;
  BF_ASSIGN_OR_RETURN(const auto groups, share_groups(plan.stages()));
  for (const ShareGroup& group : groups) {
    std::set<int> members;
    for (std::size_t share = group.first; share < group.last; ++share) {
      const int node = plan.shares[share].node;
      if (node < 0 || static_cast<std::size_t>(node) >= nodes) {
        return make_error(ErrorCode::kInvalidArgument, "a plan that puts a stage on node {}, there are {}", node,
                          nodes);
      }
      if (!members.insert(node).second) {
        return make_error(ErrorCode::kInvalidArgument, "a plan with node {} twice in one tensor group", node);
      }
      if (++stages_of_node[node] > kSharesMax) {
        return make_error(ErrorCode::kInvalidArgument, "a plan with over {} stages on node {}", kSharesMax, node);
      }
    }
  }
  return {};
}

std::vector<Assignment> make_assignments(const StartRequest& request, const std::vector<NodeDescriptor>& nodes) {
  const Plan& plan = request.plan;
  const auto groups = share_groups(plan.stages()).value();
  const auto address = [&](std::size_t share) {
    return nodes[static_cast<std::size_t>(plan.shares[share].node)].address;
  };
  std::vector<Assignment> assignments;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t share = groups[g].first; share < groups[g].last; ++share) {
      Assignment one{.epoch = request.epoch,
                     .model = request.model,
                     .config = request.config,
                     .settings = request.settings,
                     .stage = plan.shares[share].work,
                     .rank = Rank(static_cast<int>(g)),
                     .stages = static_cast<int>(groups.size()),
                     .member = static_cast<int>(share - groups[g].first)};
      if (one.leads() && g + 1 < groups.size()) one.next_address = address(groups[g + 1].first);
      for (std::size_t other = groups[g].first; groups[g].size() > 1 && other < groups[g].last; ++other) {
        one.group.push_back(address(other));
      }
      assignments.push_back(std::move(one));
    }
  }
  return assignments;
}

std::string describe(const Assignment& assignment) {
  const std::string stage = fmt::format("stage {} of {}", assignment.rank.value + 1, assignment.stages);
  const HeldSlices& slices = assignment.stage.slices;
  return slices.whole() ? stage : fmt::format("{}, {}", stage, slices.text());
}

std::string describe(std::span<const Assignment> assignments) {
  if (assignments.size() == 1) return describe(assignments.front());
  std::vector<int> numbers;
  for (const Assignment& one : assignments.first(assignments.size() - 1)) numbers.push_back(one.rank.value + 1);
  const Assignment& last = assignments.back();
  return fmt::format("stages {} and {} of {}", fmt::join(numbers, ", "), last.rank.value + 1, last.stages);
}

}  // namespace butterfly
