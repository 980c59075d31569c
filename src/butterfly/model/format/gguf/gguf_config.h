// What the metadata and tensor list of a GGUF file say about the model: its configuration. Plain functions,
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf.h"

namespace butterfly {

/// Architectures llama, qwen2 and gpt2. Valid by validate(). `vocabulary_size` stands in where the file has no
/// vocab_size. Errors: kBadData for missing, mistyped and contradicting keys; kUnsupported for other architectures
/// and for variants that change the arithmetic.
Result<ModelConfig> read_gguf_config(const GgufFile& file, int vocabulary_size);

}  // namespace butterfly
