#include "butterfly/infer/config/inference_config.h"

#include "butterfly/base/read_file.h"
#include "butterfly/infer/config/access_keys.h"
#include "butterfly/infer/config/inference_keys.h"

namespace butterfly {
namespace {

constexpr std::size_t kGrammarBytes = std::size_t{1} << 20;

}  // namespace

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
  const bool elsewhere = !deployment.membership.workers.empty() || !deployment.membership.join_at.empty();
  if (elsewhere && !deployment.compute.packed_folder.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "packed_cache is {} and other processes compute: start each worker with its own --packed-cache",
                      deployment.compute.packed_folder);
  }
  return validate(deployment.access);
}

Result<Constraint> read_constraint(const InferenceConfig& config) {
  using Kind = Constraint::Kind;
  std::vector<std::pair<const char*, Constraint>> asked;
  if (!config.json_schema.empty()) asked.push_back({"json-schema", {Kind::kJsonSchema, config.json_schema}});
  if (!config.regex.empty()) asked.push_back({"regex", {Kind::kRegex, config.regex}});
  if (!config.grammar.empty()) asked.push_back({"grammar", {Kind::kGbnf, config.grammar}});
  if (config.json_object) asked.push_back({"json-object", {Kind::kJsonObject, ""}});
  if (asked.empty()) return Constraint{};
  if (asked.size() > 1) {
    return make_error(ErrorCode::kInvalidArgument, "{} and {} ask for two forms of one answer", asked[0].first,
                      asked[1].first);
  }
  Constraint constraint = std::move(asked[0].second);
  const std::size_t begin = constraint.source.find_first_not_of(" \t\r\n");
  const bool is_schema = begin != std::string::npos && constraint.source[begin] == '{';
  if (constraint.kind == Kind::kGbnf || (constraint.kind == Kind::kJsonSchema && !is_schema)) {
    BF_ASSIGN_OR_RETURN(constraint.source, read_file(constraint.source, kGrammarBytes));
  }
  return constraint;
}

Status read_inference_config(const std::string& path, InferenceConfig& config) {
  return read_keys_file(path, "settings as TOML", bind_keys(inference_keys(), config));
}

}  // namespace butterfly
