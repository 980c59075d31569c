// Rotary positions in GGUF metadata.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf_keys.h"
#include "butterfly/model/format/gguf/gguf_writer.h"

namespace butterfly {

/// Base, dimensions, scaling and factors of config.rope and config.local_rope, whose pairs are set. Errors: kBadData,
/// kUnsupported for another scaling.
Status read_gguf_rope(const GgufKeys& keys, ModelConfig& config);

/// The keys; factors are a tensor, which the caller writes under gguf_rope_tensors(). Errors: kUnsupported.
Status write_gguf_rope(const ModelConfig& config, GgufWriter& writer);

/// Names of the tensors that hold config.rope.factors, each all of them.
std::vector<std::string> gguf_rope_tensors(const ModelConfig& config);

}  // namespace butterfly
