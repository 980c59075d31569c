// A model deployed on worker processes, and kept so when they die, leave and join: each change of the membership ends
// an epoch and begins the next over the workers that are there.
#pragma once

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/infer/deployment/deployment.h"

namespace butterfly {

/// `config` is resolved. Errors: those of Deployment::create().
Result<std::unique_ptr<Deployment>> deploy_on_workers(const Checkpoint& checkpoint, const DeploymentConfig& config,
                                                      const DeploymentObserver& observer, const std::stop_token& stop);

/// A plan for the checkpoint; where the strategy is auto and a speed is unknown, a uniform one. Errors: those of
/// make_plan().
Result<Plan> plan_for(const Checkpoint& checkpoint, const PlanCluster& cluster, const PlanOptions& options);

/// What every epoch of a checkpoint has in common: its configuration and its weights.
StartRequest start_request(const Checkpoint& checkpoint, const StageSettings& settings);

}  // namespace butterfly
