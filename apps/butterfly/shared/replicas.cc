#include "shared/replicas.h"

#include <stop_token>
#include <thread>

#include "butterfly/cluster/control/node_status.h"
#include "butterfly/infer/deployment/cluster_deployment.h"
#include "butterfly/plan/description/cluster_model.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kAskTimeoutMs = 30'000;  // a worker that just began measures itself first

bool holds_all(const Checkpoint& checkpoint, const NodeDescriptor& node, const PlanOptions& options) {
  PlanOptions alone = options;
  alone.strategy = "uniform";
  const int context = options.context > 0 ? options.context : checkpoint.config.context;
  const auto plan = plan_for(checkpoint, cluster_of(std::vector{node}), alone);
  return plan && plan->context >= context;
}

}  // namespace

Result<int> choose_replicas(const Checkpoint& checkpoint, const DeploymentConfig& config) {
  const std::vector<std::string>& workers = config.membership.workers;
  const bool open = config.plan.strategy == "auto" && config.plan.goal == PlanGoal::kThroughput;
  if (!open || workers.size() < 2 || !config.membership.join_at.empty()) return 1;
  BF_ASSIGN_OR_RETURN(const DeploymentConfig decided, resolved(config, checkpoint.config));
  const Deadline deadline = after_ms(kAskTimeoutMs);
  for (const std::string& address : workers) {
    BF_ASSIGN_OR_RETURN(const NodeStatus status, ask_status(address, decided.membership.cluster.access, deadline));
    if (!status.worker || !holds_all(checkpoint, status.worker->node, decided.plan)) return 1;
  }
  return static_cast<int>(workers.size());
}

Result<std::vector<std::unique_ptr<Deployment>>> deploy_replicas(
    const Checkpoint& checkpoint, const InferenceConfig& config, int count,
    const std::function<DeploymentObserver(std::size_t replica)>& observer_of, std::stop_source& stop) {
  std::vector<InferenceConfig> configs;
  for (int i = 0; i < count; ++i) {
    configs.push_back(config);
    BF_ASSIGN_OR_RETURN(configs.back().deployment, replica_config(config.deployment, i, count));
  }
  std::vector<std::unique_ptr<Deployment>> replicas(configs.size());
  std::vector<Status> ended(configs.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    threads.emplace_back([&, i] {
      auto made = deploy(checkpoint, configs[i], observer_of(i), stop.get_token());
      if (made) {
        replicas[i] = std::move(*made);
      } else {
        ended[i] = tl::unexpected(made.error());
        stop.request_stop();
      }
    });
    if (config.deployment.is_here()) threads.back().join();
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  // The first that failed by itself says why: the others were stopped for it.
  for (const Status& status : ended) {
    if (!status && status.error().code != ErrorCode::kCancelled) return tl::unexpected(status.error());
  }
  for (const Status& status : ended) BF_TRY(status);
  return replicas;
}

}  // namespace butterfly::app
