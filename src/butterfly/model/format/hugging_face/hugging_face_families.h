// The families of models that a config.json can describe: which of its keys says what of a ModelConfig.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/hugging_face/hugging_face_object.h"

namespace butterfly {

/// By model_type. Errors: those of read_hugging_face_config; the result is not validated.
Result<ModelConfig> read_hugging_face_family(const JsonObject& object);

/// rope_theta, rope_scaling (transformers 4) and rope_parameters (transformers 5, also one for each kind of layer) into
/// config.rope and config.local_rope, whose `pairs` are set; `base` and `rotary` (the rotated part of a head) hold
/// where nothing else is said.
struct RopeDefaults {
  float base = 10000.0f;
  float rotary = 1.0f;
  const char* base_key = "rope_theta";
  const char* rotary_key = "partial_rotary_factor";
};
Status read_hugging_face_rope(const JsonObject& object, const RopeDefaults& defaults, ModelConfig& config);

/// Sizes and positions of latent attention, and its scale.
Status read_hugging_face_latent(const JsonObject& object, ModelConfig& config);

}  // namespace butterfly
