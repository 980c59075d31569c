#include "butterfly/model/format/gguf/gguf_latent.h"

#include <cmath>
#include <string>

#include "butterfly/model/core/rotary.h"
#include "butterfly/model/format/gguf/gguf_writer.h"

namespace butterfly {

namespace {

/// Ours: other readers take the epsilon of the other norms.
constexpr const char* kEpsilonKey = "attention.latent_layer_norm_rms_epsilon";

}  // namespace

bool has_gguf_latent(std::string_view architecture) {
  return architecture == "deepseek2";
}

Status read_gguf_latent_sizes(const GgufKeys& keys, ModelConfig& config) {
  const bool newer = keys.has("attention.key_length_mla");
  BF_ASSIGN_OR_RETURN(config.latent.dim, keys.integer("attention.kv_lora_rank"));
  BF_ASSIGN_OR_RETURN(config.latent.query_rank, keys.integer_or("attention.q_lora_rank", 0));
  BF_ASSIGN_OR_RETURN(config.head_dim, keys.integer(newer ? "attention.key_length_mla" : "attention.key_length"));
  BF_ASSIGN_OR_RETURN(config.latent.value_dim,
                      keys.integer(newer ? "attention.value_length_mla" : "attention.value_length"));
  if (config.latent.dim == 0) {
    return make_error(ErrorCode::kBadData, "{}: {} is 0, expected at least 1", keys.file().source(),
                      keys.full("attention.kv_lora_rank"));
  }
  BF_ASSIGN_OR_RETURN(config.latent.norm_epsilon, keys.number_or(kEpsilonKey, 0.0f));
  config.kv_heads = 1;
  // Lite models have no rank, and their files sometimes say one.
  if (keys.file().find_tensor("blk.0.attn_q.weight") != nullptr) config.latent.query_rank = 0;
  return {};
}

Status read_gguf_latent_scale(const GgufKeys& keys, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const auto type, keys.file().get_string(keys.full("rope.scaling.type")));
  if (type.value_or("none") != "yarn") return {};
  BF_ASSIGN_OR_RETURN(const float factor, keys.number_or("rope.scaling.factor", 1.0f));
  BF_ASSIGN_OR_RETURN(const float multiplier, keys.number_or("rope.scaling.yarn_log_multiplier", 0.0f));
  BF_ASSIGN_OR_RETURN(config.rope.magnitude, keys.number_or("rope.scaling.attn_factor", 1.0f));
  const double log_factor = factor > 1 ? exact::log(static_cast<double>(factor)) : 0.0;
  const double scale =
      static_cast<double>(config.rope.magnitude) * (1.0 + static_cast<double>(multiplier) * log_factor);
  if (keys.has("attention.scale")) {
    BF_ASSIGN_OR_RETURN(config.attention_scale, keys.number("attention.scale"));
  } else if (scale != 1.0) {
    config.attention_scale = static_cast<float>(scale * scale) / std::sqrt(static_cast<float>(config.head_dim));
  }
  return {};
}

Status write_gguf_latent_scale(const ModelConfig& config, GgufWriter& writer) {
  const double root = std::sqrt(static_cast<double>(config.head_dim));
  const double scale = config.attention_scale > 0 ? static_cast<double>(config.attention_scale) * root : 1.0;
  const double factor = static_cast<double>(config.rope.yarn->factor);
  const double magnitude = std::sqrt(scale) / static_cast<double>(config.rope.magnitude);
  const double multiplier = factor > 1 ? (magnitude - 1.0) / exact::log(factor) : 0.0;
  const std::string prefix = config.architecture + ".";
  writer.add_float(prefix + "rope.scaling.attn_factor", config.rope.magnitude);
  writer.add_float(prefix + "rope.scaling.yarn_log_multiplier", static_cast<float>(multiplier));
  writer.add_float(prefix + "attention.scale", config.attention_scale);
  return {};
}

void write_gguf_latent_sizes(const ModelConfig& config, GgufWriter& writer) {
  const auto integer = [&](const char* key, int value) {
    writer.add_integer(config.architecture + "." + key, static_cast<std::uint32_t>(value));
  };
  integer("attention.kv_lora_rank", config.latent.dim);
  if (config.latent.query_rank > 0) integer("attention.q_lora_rank", config.latent.query_rank);
  integer("attention.key_length", config.cached_key_dim());
  integer("attention.value_length", config.latent.dim);
  integer("attention.key_length_mla", config.head_dim);
  integer("attention.value_length_mla", config.latent.value_dim);
  if (config.latent.norm_epsilon > 0) {
    writer.add_float(config.architecture + "." + kEpsilonKey, config.latent.norm_epsilon);
  }
}

}  // namespace butterfly
