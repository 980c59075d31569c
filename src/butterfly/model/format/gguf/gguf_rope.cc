#include "butterfly/model/format/gguf/gguf_rope.h"

#include <cstring>
#include <string>
#include <vector>

#include "butterfly/model/core/rope_factors.h"
#include "butterfly/model/core/rotary.h"
#include "butterfly/model/format/gguf/gguf_families.h"
#include "butterfly/model/format/gguf/gguf_latent.h"

namespace butterfly {
namespace {

Status read_factors(const GgufFile& file, const char* name, RopeConfig& rope) {
  const GgufTensor* tensor = file.find_tensor(name);
  if (!tensor) return {};
  if (tensor->type != DType::kF32 || tensor->dims != 1) {
    return make_error(ErrorCode::kUnsupported, "{}: {} is of type {} with {} dimensions, expected F32 with 1",
                      file.source(), name, tensor->type_name, tensor->dims);
  }
  rope.factors.resize(static_cast<std::size_t>(tensor->shape[0]));
  std::memcpy(rope.factors.data(), tensor->bytes.data(), tensor->bytes.size());
  return {};
}

// A key of our own: llama.cpp always rounds.
constexpr const char* kYarnTruncate = "butterfly.rope.yarn_truncate";

/// What yarn multiplies rotated elements by where nothing else is said.
float usual_magnitude(float factor) {
  const double log_factor = factor > 1 ? exact::log(static_cast<double>(factor)) : 0.0;
  return static_cast<float>(1.0 + 0.1 * log_factor);
}

Status read_yarn(const GgufKeys& keys, float factor, const ModelConfig& config, RopeConfig& rope) {
  YarnScaling yarn{.factor = factor};
  BF_ASSIGN_OR_RETURN(yarn.original_context, keys.integer_or("rope.scaling.original_context_length", config.context));
  BF_ASSIGN_OR_RETURN(yarn.beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", yarn.beta_fast));
  BF_ASSIGN_OR_RETURN(yarn.beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", yarn.beta_slow));
  BF_ASSIGN_OR_RETURN(const auto truncate, keys.file().get_bool(kYarnTruncate));
  yarn.truncate = truncate.value_or(true);
  BF_ASSIGN_OR_RETURN(const float attention, keys.number_or("rope.scaling.attn_factor", 1.0f));
  BF_ASSIGN_OR_RETURN(rope, with_yarn(rope, yarn));
  rope.magnitude = attention * usual_magnitude(factor);
  return {};
}

/// Factors of a model whose context is longer than the original one, or not.
Status read_longrope(const GgufKeys& keys, const ModelConfig& config, RopeConfig& rope) {
  BF_ASSIGN_OR_RETURN(const int original, keys.integer_or("rope.scaling.original_context_length", config.context));
  BF_TRY(read_factors(keys.file(), config.context > original ? "rope_factors_long.weight" : "rope_factors_short.weight",
                      rope));
  BF_ASSIGN_OR_RETURN(rope.magnitude, keys.number_or("rope.scaling.attn_factor", 1.0f));
  return {};
}

void write_yarn(const YarnScaling& yarn, const std::string& prefix, GgufWriter& writer) {
  writer.add_string(prefix + "rope.scaling.type", "yarn");
  writer.add_float(prefix + "rope.scaling.factor", yarn.factor);
  writer.add_integer(prefix + "rope.scaling.original_context_length",
                     static_cast<std::uint32_t>(yarn.original_context));
  writer.add_float(prefix + "rope.scaling.yarn_beta_fast", yarn.beta_fast);
  writer.add_float(prefix + "rope.scaling.yarn_beta_slow", yarn.beta_slow);
  if (!yarn.truncate) writer.add_bool(kYarnTruncate, false);
}

}  // namespace

Status read_gguf_rope(const GgufKeys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  BF_ASSIGN_OR_RETURN(rope.base, keys.number_or("rope.freq_base", 10000.0f));
  BF_ASSIGN_OR_RETURN(rope.dim, keys.integer_or("rope.dimension_count", config.head_dim));
  config.local_rope.dim = rope.dim;
  BF_ASSIGN_OR_RETURN(config.local_rope.base, keys.number_or("rope.freq_base_swa", 10000.0f));
  // Files older than rope.scaling.* have the linear factor under another name.
  BF_ASSIGN_OR_RETURN(const float old_factor, keys.number_or("rope.scale_linear", 1.0f));
  BF_ASSIGN_OR_RETURN(const float factor, keys.number_or("rope.scaling.factor", old_factor));
  BF_ASSIGN_OR_RETURN(const auto type, keys.file().get_string(keys.full("rope.scaling.type")));
  const std::string_view scaling = type.value_or(old_factor != 1.0f ? "linear" : "none");
  const bool long_factors = keys.file().find_tensor("rope_factors_long.weight") != nullptr;
  if (scaling == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    rope.factor = factor;
  } else if (scaling == "yarn") {
    return read_yarn(keys, factor, config, rope);
  } else if (scaling == "longrope" || (scaling == "none" && long_factors)) {
    return read_longrope(keys, config, rope);
  } else if (scaling != "none") {
    return make_error(ErrorCode::kUnsupported, "{}: rope scaling \"{}\", supported are none, linear, yarn and longrope",
                      keys.file().source(), printable(scaling));
  }
  return read_factors(keys.file(), "rope_freqs.weight", rope);
}

Status write_gguf_rope(const ModelConfig& config, GgufWriter& writer) {
  const std::string prefix = config.architecture + ".";
  const auto refuse = [&](const char* what) { return gguf_cannot_have(config, what); };
  const bool phi3 = config.architecture == "phi3";
  const bool yarn = config.rope.yarn.has_value();
  if (!phi3 && !yarn && config.rope.magnitude != 1) return refuse("a magnitude of rotated elements");
  const RopeConfig& local = config.local_rope;
  if (config.has_local_rope() && (!local.factors.empty() || local.magnitude != 1 || local.dim != config.rope.dim ||
                                  local.scaling != RopeConfig::Scaling::kNone)) {
    return refuse("a scaling of its local positions");
  }
  writer.add_integer(prefix + "rope.dimension_count", static_cast<std::uint32_t>(config.rope.dim));
  writer.add_float(prefix + "rope.freq_base", config.rope.base);
  if (config.has_local_rope()) writer.add_float(prefix + "rope.freq_base_swa", local.base);
  if (yarn) {
    write_yarn(*config.rope.yarn, prefix, writer);
    if (config.has_latent()) return write_gguf_latent_scale(config, writer);
    const float usual = usual_magnitude(config.rope.yarn->factor);
    const float factor = config.rope.magnitude / usual;
    if (factor * usual != config.rope.magnitude) return refuse("this magnitude of rotated elements");
    writer.add_float(prefix + "rope.scaling.attn_factor", factor);
    return {};
  }
  if (config.rope.scaling == RopeConfig::Scaling::kLinear) {
    writer.add_string(prefix + "rope.scaling.type", "linear");
    writer.add_float(prefix + "rope.scaling.factor", config.rope.factor);
  }
  if (phi3 && !config.rope.factors.empty()) {
    writer.add_string(prefix + "rope.scaling.type", "longrope");
    writer.add_float(prefix + "rope.scaling.attn_factor", config.rope.magnitude);
    writer.add_integer(prefix + "rope.scaling.original_context_length", static_cast<std::uint32_t>(config.context));
  }
  return {};
}

std::vector<std::string> gguf_rope_tensors(const ModelConfig& config) {
  if (config.rope.factors.empty() || config.rope.yarn) return {};
  if (config.architecture == "phi3") return {"rope_factors_long.weight", "rope_factors_short.weight"};
  return {"rope_freqs.weight"};
}

}  // namespace butterfly
