#include "butterfly/infer/config/inference_config.h"

#include "butterfly/infer/config/access_keys.h"
#include "butterfly/infer/config/inference_keys.h"

namespace butterfly {

Status validate(const InferenceConfig& config) {
  const DeploymentConfig& deployment = config.deployment;
  if (config.model.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "model is not set: --model FILE, or a line model = \"FILE\"");
  }
  if (deployment.nodes > 1 && !deployment.membership.workers.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "nodes is {} and workers names {}: one of them says who works",
                      deployment.nodes, deployment.membership.workers.size());
  }
  if (deployment.nodes > 1 && !deployment.membership.join_at.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "nodes is {} and join_at {}: workers join workers alone",
                      deployment.nodes, deployment.membership.join_at);
  }
  return validate(deployment.access);
}

Status read_inference_config(const std::string& path, InferenceConfig& config) {
  return read_keys_file(path, "settings as TOML", bind_keys(inference_keys(), config));
}

}  // namespace butterfly
