// What the parts of a deployment on workers share: the model that is deployed, and the epoch that runs. Plain values;
// used by the thread that computes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/cluster/membership/membership.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/infer/deployment/known_cluster.h"

namespace butterfly {

/// What all epochs have in common.
struct DeployedModel {
  const Checkpoint checkpoint;
  const DeploymentConfig config;  // resolved
  const DeploymentObserver observer{};
  const std::stop_token stop{};
  StartRequest request{};  // all but the plan and the epoch
  KnownCluster known{};
  int context = 0;  // of the first plan, which the next ones keep: texts were promised it

  /// For these members, with the speeds that they showed. Errors: those of make_plan(); kUnavailable for no members.
  Result<Plan> plan(const Members& members) const;

  /// A line for people.
  void say(const std::string& line) const;
};

struct RunningEpoch {
  Members members{};
  Plan plan{};
  std::vector<double> planned_slowness{};     // of each stage, when the plan was made
  std::unique_ptr<ClusterSession> session{};  // null: none runs; gone before the membership
  PipelineChannels channels{};

  const NodeDescriptor& node_of_stage(std::size_t stage) const {
    return members.nodes[static_cast<std::size_t>(plan.shares[stage].node)];
  }
};

}  // namespace butterfly
