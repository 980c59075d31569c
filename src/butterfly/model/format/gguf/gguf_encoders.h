// Encoders, and T5 with its decoder, in GGUF files: bert, nomic-bert, modern-bert, t5 and t5encoder, as llama.cpp has
// them. Files of encoders have no masked-LM head: they give hidden rows. Plain functions, thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf_keys.h"

namespace butterfly {

class GgufWriter;

bool is_gguf_encoder(std::string_view architecture);
std::vector<std::string_view> gguf_encoders();

/// What read_gguf_family() does for others, where config.architecture and the dimensions are set.
/// Errors: kBadData, kUnsupported.
Status read_gguf_encoder(const GgufKeys& keys, ModelConfig& config);

/// Errors: kUnsupported naming what a file of the architecture cannot have.
Status write_gguf_encoder(const ModelConfig& config, GgufWriter& writer);

/// What a file calls a weight of these models.
std::string gguf_encoder_name(const ModelConfig& config, const std::string& canonical);

}  // namespace butterfly
