// Latent attention of config.json (DeepSeek-V2 and V3).
#include <cmath>

#include "butterfly/model/core/rotary.h"
#include "butterfly/model/format/hugging_face/hugging_face_families.h"

namespace butterfly {
namespace {

/// What yarn adds to the scale of the scores: the square of a magnitude that is not the rotated elements' own.
Result<float> yarn_scale(const JsonObject& object) {
  double scale = 1.0;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* json = object.find(key);
    if (!json || !json->is_object()) continue;
    const JsonObject scaling(*json, object.source() + ": " + key);
    BF_ASSIGN_OR_RETURN(const std::string old_type, scaling.text_or("type", "default"));
    BF_ASSIGN_OR_RETURN(const std::string type, scaling.text_or("rope_type", old_type.c_str()));
    if (type == "default") continue;
    BF_ASSIGN_OR_RETURN(const float factor, scaling.number_or("factor", 1.0f));
    BF_ASSIGN_OR_RETURN(const float magnitude, scaling.number_or("mscale_all_dim", 0.0f));
    const double log_factor = factor > 1 ? exact::log(static_cast<double>(factor)) : 0.0;
    scale = 1.0 + 0.1 * static_cast<double>(magnitude) * log_factor;
  }
  return static_cast<float>(scale * scale);
}

}  // namespace

Status read_hugging_face_latent(const JsonObject& object, ModelConfig& config) {
  BF_ASSIGN_OR_RETURN(const bool biases, object.flag_or("attention_bias", JsonObject::Default::kFalse));
  if (biases) return unsupported(object, "attention_bias", "true", "false");
  BF_ASSIGN_OR_RETURN(config.latent.dim, object.integer_or("kv_lora_rank", 512));
  BF_ASSIGN_OR_RETURN(config.latent.query_rank, object.integer_or("q_lora_rank", 0));
  BF_ASSIGN_OR_RETURN(config.latent.value_dim, object.integer_or("v_head_dim", 128));
  BF_ASSIGN_OR_RETURN(const int plain, object.integer_or("qk_nope_head_dim", 128));
  BF_ASSIGN_OR_RETURN(const int rotated, object.integer_or("qk_rope_head_dim", 64));
  constexpr int kMax = 1 << 20;
  if (config.latent.dim < 1 || plain < 1 || rotated < 1 || plain > kMax || rotated > kMax) {
    return make_error(ErrorCode::kBadData,
                      "{}: kv_lora_rank is {}, qk_nope_head_dim {}, qk_rope_head_dim {}, expected 1 to {} each",
                      object.source(), config.latent.dim, plain, rotated, kMax);
  }
  // The classes of transformers make these norms without the configuration's epsilon.
  constexpr float kEpsilon = 1e-6f;
  if (config.norm_epsilon != kEpsilon) config.latent.norm_epsilon = kEpsilon;
  config.kv_heads = 1;
  config.head_dim = rotated;  // what rope is of
  BF_TRY(read_hugging_face_rope(object, {}, config));
  config.head_dim = plain + rotated;
  BF_ASSIGN_OR_RETURN(const bool adjacent, object.flag_or("rope_interleave", JsonObject::Default::kTrue));
  if (!adjacent) config.rope.pairs = config.local_rope.pairs = RopePairs::kHalves;
  BF_ASSIGN_OR_RETURN(const float scale, yarn_scale(object));
  if (scale != 1.0f) config.attention_scale = scale / std::sqrt(static_cast<float>(config.head_dim));
  return {};
}

}  // namespace butterfly
