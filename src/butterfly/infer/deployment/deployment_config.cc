#include "butterfly/infer/deployment/deployment_config.h"

#include <algorithm>

#include "butterfly/base/read_file.h"
#include "butterfly/machine/topology.h"
#include "butterfly/plan/shares/custom.h"

namespace butterfly {
namespace {

bool looks_at_links(const std::string& strategy) {
  return strategy == "topology" || strategy == "tensor" || strategy == "hybrid" || strategy == "auto";
}

Status check(const DeploymentConfig& config, const ModelConfig& model) {
  if (config.compute.threads < 0 || config.nodes < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads on each of {} nodes", config.compute.threads,
                      config.nodes);
  }
  const DType type = config.stage.wire_type;
  const int block = type == DType::kQ8_0 ? 32 : 1;
  if (is_wire_type(type) && model.model_dim % block == 0) return {};
  return make_error(ErrorCode::kInvalidArgument, "activations of {} elements cannot travel as {}", model.model_dim,
                    to_string(type));
}

}  // namespace

Result<DeploymentConfig> replica_config(DeploymentConfig config, int number, int replicas) {
  std::vector<std::string>& workers = config.membership.workers;
  if (replicas < 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} replicas were asked for, at least 1 is needed", replicas);
  }
  if (replicas > 1 && !config.membership.join_at.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "workers that join at {} would have {} replicas to choose from",
                      config.membership.join_at, replicas);
  }
  if (!workers.empty() && workers.size() < static_cast<std::size_t>(replicas)) {
    return make_error(ErrorCode::kInvalidArgument, "{} workers for {} replicas", workers.size(), replicas);
  }
  if (config.is_here() && config.compute.threads == 0) {
    config.compute.threads = std::max(1, usable_threads() / (std::max(config.nodes, 1) * replicas));
  }
  const auto count = static_cast<std::ptrdiff_t>(workers.size());
  workers = std::vector(workers.begin() + count * number / replicas, workers.begin() + count * (number + 1) / replicas);
  return config;
}

Result<DeploymentConfig> resolved(DeploymentConfig config, const ModelConfig& model) {
  BF_TRY(check(config, model));
  if (config.compute.threads == 0) config.compute.threads = std::max(1, usable_threads() / config.nodes);
  config.stage.kv_type = config.plan.kv_type = config.compute.kv_type.value_or(kv_type_for(model));
  if (!config.is_here()) {
    BF_ASSIGN_OR_RETURN(config.membership.cluster.access, node_access(config.access));
  }
  if (!config.custom_file.empty()) {
    BF_ASSIGN_OR_RETURN(const std::string text, read_file(config.custom_file, kAnySize));
    BF_ASSIGN_OR_RETURN(config.plan.custom, parse_custom_plan(text));
  }
  config.measure_links = config.measure_links || looks_at_links(config.plan.strategy);
  return config;
}

}  // namespace butterfly
