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
