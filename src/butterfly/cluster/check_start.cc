#include "butterfly/cluster/check_start.h"

#include <set>

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
    if (node < 0 || static_cast<std::size_t>(node) >= nodes || !used.insert(node).second) {
      return make_error(ErrorCode::kInvalidArgument, "a plan that puts a stage on node {}, there are {} with one each",
                        node, nodes);
    }
  }
  return {};
}

}  // namespace butterfly
