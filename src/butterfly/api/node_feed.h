// How a deployment's membership comes into a registry and to a generator's event callback.
#pragma once

#include <functional>
#include <mutex>

#include "butterfly/api/replica.h"
#include "butterfly/generator.h"
#include "butterfly/infer/deployment/deployment.h"

namespace butterfly {

/// Registers members as they appear and marks those unhealthy that are gone; tells `event`, where there is one, one
/// call at a time under `mutex`. Registry and mutex must outlive the deployment that calls the observer.
DeploymentObserver node_feed(NodeRegistry& registry, std::mutex& mutex,
                             std::function<void(const GeneratorEvent&)> event);

/// The nodes of a replica within this process. Errors: those of the registry.
Status register_threads(const Replica& replica, int threads, NodeRegistry& registry);

}  // namespace butterfly
