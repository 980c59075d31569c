#include "butterfly/cluster/check_start.h"

#include <set>

#include "butterfly/plan/share_groups.h"

namespace butterfly {

Status check_start(const StartRequest& request, std::size_t nodes, bool started) {
  const Plan& plan = request.plan;
  if (started) return make_error(ErrorCode::kInvalidArgument, "a session starts once, this one has started");
  if (!request.weights) return make_error(ErrorCode::kInvalidArgument, "a session without a provider of weights");
  if (plan.stages.empty() || plan.stages.size() != plan.node_of_stage.size()) {
    return make_error(ErrorCode::kInvalidArgument, "a plan of {} stages on {} nodes", plan.stages.size(),
                      plan.node_of_stage.size());
  }
  std::set<int> used;
  for (const int node : plan.node_of_stage) {
    if (node < 0 || static_cast<std::size_t>(node) >= nodes) {
      return make_error(ErrorCode::kInvalidArgument, "a plan that puts a stage on node {}, there are {}", node, nodes);
    }
    if (!used.insert(node).second) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a plan that scatters layers, two stages on node {}: a node runs one", node);
    }
  }
  BF_TRY(share_groups(plan.stages));
  return {};
}

std::vector<Assignment> make_assignments(const StartRequest& request, const std::vector<NodeDescriptor>& nodes) {
  const Plan& plan = request.plan;
  const auto groups = share_groups(plan.stages).value();
  const auto address = [&](std::size_t share) {
    return nodes[static_cast<std::size_t>(plan.node_of_stage[share])].address;
  };
  std::vector<Assignment> assignments;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t share = groups[g].first; share < groups[g].last; ++share) {
      Assignment one{.epoch = request.epoch,
                     .model = request.model,
                     .config = request.config,
                     .options = request.options,
                     .stage = plan.stages[share],
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
  const LaneRange& lanes = assignment.stage.lanes;
  return lanes.whole() ? stage : fmt::format("{}, lanes {}-{}", stage, lanes.first, lanes.last - 1);
}

}  // namespace butterfly
