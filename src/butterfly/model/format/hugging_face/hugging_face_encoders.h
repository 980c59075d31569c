// Encoders, and encoders with decoders, in Hugging Face directories: their configurations, and what their files call
// the canonical weights. Plain functions, thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/hugging_face/hugging_face_families.h"
#include "butterfly/model/format/hugging_face/hugging_face_object.h"
#include "butterfly/model/format/hugging_face/hugging_face_weights.h"

namespace butterfly {

struct EncoderFamily {
  std::string_view model_type;
  std::string_view architecture;
  Status (*read)(const JsonObject&, ModelConfig&);  // as read_hugging_face_family
};
std::span<const EncoderFamily> hugging_face_encoders();

/// What files may call a weight, likeliest first; a name in a file may have further parts in front of these. Empty for
/// other models, and for weights that these have not.
std::vector<std::string> encoder_weight_names(const ModelConfig& config, std::string_view canonical);

struct StoredEncoderWeight {
  std::string name{};  // whole
  const SafetensorsEntry* entry = nullptr;
  std::size_t shard = 0;
};
/// The first of these names that a file has.
std::optional<StoredEncoderWeight> find_encoder_weight(const std::vector<HuggingFaceShard>& shards,
                                                       const std::vector<std::string>& names);

/// The element of `stored` where the weight begins. `shape`, the weight's, becomes that of what holds it.
std::int64_t place_encoder_weight(const ModelConfig& config, const WeightInfo& expected,
                                  const StoredEncoderWeight& stored, std::vector<std::int64_t>& shape);

/// What the files say of any model beside their config.json: whether there is a head that gives logits, and whether it
/// has a matrix of its own.
void adapt_to_files(const std::vector<HuggingFaceShard>& shards, ModelConfig& config);

}  // namespace butterfly
