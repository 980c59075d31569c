// The deployment over worker processes; see deployment.h.
#pragma once

#include "butterfly/infer/deployment.h"

namespace butterfly {

/// options.workers names them. Errors: kUnavailable naming the worker that cannot be reached, and those of
/// Deployment::create.
Result<std::unique_ptr<Deployment>> deploy_on_workers(const Checkpoint& checkpoint, const DeploymentOptions& options);

}  // namespace butterfly
