// Rotary positions of config.json: plain, linear, llama3, yarn, longrope; for all layers or for kinds of them.
#include <algorithm>
#include <cmath>

#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/model/format/hugging_face/hugging_face_families.h"

namespace butterfly {
namespace {

Result<int> original_context(const JsonObject& scaling, const ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const int tokens, scaling.integer_or("original_max_position_embeddings", config.context));
  if (tokens < 2) {
    return make_error(ErrorCode::kBadData, "{}: original_max_position_embeddings is {}, expected at least 2",
                      scaling.source(), tokens);
  }
  return tokens;
}

Status read_yarn(const JsonObject& scaling, const ModelConfig& config, RopeConfig& rope) {
  YarnScaling yarn;
  BF_ASSIGN_OR_RETURN(yarn.original_context, original_context(scaling, config));
  const float ratio = static_cast<float>(config.context) / static_cast<float>(yarn.original_context);
  BF_ASSIGN_OR_RETURN(yarn.factor, scaling.number_or("factor", ratio));
  BF_ASSIGN_OR_RETURN(yarn.beta_fast, scaling.number_or("beta_fast", yarn.beta_fast));
  BF_ASSIGN_OR_RETURN(yarn.beta_slow, scaling.number_or("beta_slow", yarn.beta_slow));
  BF_ASSIGN_OR_RETURN(yarn.truncate, scaling.flag_or("truncate", JsonObject::Default::kTrue));
  BF_ASSIGN_OR_RETURN(const float mscale, scaling.number_or("mscale", 0.0f));
  BF_ASSIGN_OR_RETURN(const float mscale_all_dim, scaling.number_or("mscale_all_dim", 0.0f));
  const auto magnitude = [&](float scale) {
    const double log_factor = yarn.factor > 1 ? exact::log(static_cast<double>(yarn.factor)) : 0.0;
    return static_cast<float>(0.1 * static_cast<double>(scale) * log_factor + 1.0);
  };
  const bool both = mscale != 0 && mscale_all_dim != 0;
  const float usual = both ? magnitude(mscale) / magnitude(mscale_all_dim) : magnitude(1.0f);
  BF_ASSIGN_OR_RETURN(rope.magnitude, scaling.number_or("attention_factor", usual));
  BF_ASSIGN_OR_RETURN(rope, with_yarn(rope, yarn));
  return {};
}

/// The long factors hold for every position of a model whose context is longer than the original one: which of them a
/// text gets must not depend on how long it becomes.
Status read_longrope(const JsonObject& scaling, const ModelConfig& config, RopeConfig& rope) {
  BF_ASSIGN_OR_RETURN(const int original, original_context(scaling, config));
  const float ratio = static_cast<float>(config.context) / static_cast<float>(original);
  BF_ASSIGN_OR_RETURN(const float factor, scaling.number_or("factor", ratio));
  BF_ASSIGN_OR_RETURN(rope.factors, scaling.numbers(config.context > original ? "long_factor" : "short_factor"));
  const double stretch = factor > 1 ? exact::log(static_cast<double>(factor)) / exact::log(original) : 0.0;
  const auto usual = static_cast<float>(std::sqrt(1.0 + stretch));
  BF_ASSIGN_OR_RETURN(rope.magnitude, scaling.number_or("attention_factor", usual));
  return {};
}

Status read_scaling(const JsonObject& scaling, const ModelConfig& config, float& rotary, RopeConfig& rope) {
  BF_ASSIGN_OR_RETURN(rope.base, scaling.number_or("rope_theta", rope.base));
  BF_ASSIGN_OR_RETURN(const std::string old_type, scaling.text_or("type", "default"));
  BF_ASSIGN_OR_RETURN(const std::string type, scaling.text_or("rope_type", old_type.c_str()));
  BF_ASSIGN_OR_RETURN(rotary, scaling.number_or("partial_rotary_factor", rotary));
  rope.dim = static_cast<int>(static_cast<float>(config.head_dim) * std::clamp(rotary, 0.0f, 1.0f));
  if (type == "default") return {};
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    BF_ASSIGN_OR_RETURN(rope.factor, scaling.number("factor"));
    return {};
  }
  if (type == "yarn") return read_yarn(scaling, config, rope);
  // "su" is what the first of these files said.
  if (type == "longrope" || type == "su") return read_longrope(scaling, config, rope);
  if (type != "llama3") {
    return unsupported(scaling, "the rope type", type, "default, linear, llama3, yarn or longrope");
  }
  rope.scaling = RopeConfig::Scaling::kLlama3;
  BF_ASSIGN_OR_RETURN(rope.factor, scaling.number("factor"));
  BF_ASSIGN_OR_RETURN(rope.low_freq_factor, scaling.number("low_freq_factor"));
  BF_ASSIGN_OR_RETURN(rope.high_freq_factor, scaling.number("high_freq_factor"));
  BF_ASSIGN_OR_RETURN(rope.original_context, scaling.integer("original_max_position_embeddings"));
  return {};
}

/// An object, to which the model's own original_max_position_embeddings is added where it has none (Phi-3).
Result<nlohmann::json> scaling_object(const JsonObject& object, const std::string& source, const nlohmann::json& json) {
  if (!json.is_object()) {
    return make_error(ErrorCode::kBadData, "{} is {}, expected an object", source, json.type_name());
  }
  nlohmann::json scaling = json;
  const char* key = "original_max_position_embeddings";
  if (const nlohmann::json* tokens = object.find(key); tokens && !scaling.contains(key)) scaling[key] = *tokens;
  return scaling;
}

}  // namespace

Status read_hugging_face_rope(const JsonObject& object, const RopeDefaults& defaults, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  BF_ASSIGN_OR_RETURN(rope.base, object.number_or(defaults.base_key, defaults.base));
  BF_ASSIGN_OR_RETURN(float rotary, object.number_or(defaults.rotary_key, defaults.rotary));
  rope.dim = static_cast<int>(static_cast<float>(config.head_dim) * std::clamp(rotary, 0.0f, 1.0f));
  config.local_rope.pairs = rope.pairs;
  config.local_rope.dim = rope.dim;
  BF_ASSIGN_OR_RETURN(config.local_rope.base, object.number_or("rope_local_base_freq", rope.base));
  // rope_parameters is the newer name and then also holds rope_theta.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* json = object.find(key);
    if (!json) continue;
    const std::string source = object.source() + ": " + key;
    BF_ASSIGN_OR_RETURN(const nlohmann::json scaling, scaling_object(object, source, *json));
    if (!scaling.contains("full_attention") && !scaling.contains("sliding_attention")) {
      BF_TRY(read_scaling(JsonObject(scaling, source), config, rotary, rope));
      continue;
    }
    for (auto [kind, target] : {std::pair{"full_attention", &rope}, {"sliding_attention", &config.local_rope}}) {
      const auto found = scaling.find(kind);
      if (found == scaling.end() || found->is_null()) continue;
      BF_ASSIGN_OR_RETURN(const nlohmann::json one, scaling_object(object, source + ": " + kind, *found));
      BF_TRY(read_scaling(JsonObject(one, source + ": " + kind), config, rotary, *target));
    }
  }
  return {};
}

}  // namespace butterfly
