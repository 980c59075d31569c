// Several copies of one model, each on nodes of its own: how many there are, and how they are made ready.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/config/inference_config.h"
#include "butterfly/infer/deployment/deployment.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly::app {

/// As many as there are workers where texts shall be many (the goal `throughput`), the split is ours to choose, and
/// each worker has room for the whole model with its whole context: replicas need not wait for each other. Else 1. Asks
/// the workers. Errors: those of reaching them.
Result<int> choose_replicas(const Checkpoint& checkpoint, const DeploymentConfig& config);

/// The workers of all replicas load at the same time; replicas in this process, where each takes all memory and cores
/// to load, in turn. `observer_of` is asked for each. `stop` ends waiting for workers, now and later; it is requested
/// where one fails, so that the others need not load for nothing. Errors: those of replica_config() and of deploy().
Result<std::vector<std::unique_ptr<Deployment>>> deploy_replicas(
    const Checkpoint& checkpoint, const InferenceConfig& config, int count,
    const std::function<DeploymentObserver(std::size_t replica)>& observer_of, std::stop_source& stop);

}  // namespace butterfly::app
