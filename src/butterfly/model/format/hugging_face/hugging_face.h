// A Hugging Face directory as a Checkpoint: config.json, *.safetensors (one file or shards with an index) and
// tokenizer.json. Weights keep their stored type; what this library orders otherwise is reordered when it is asked for:
// Q and K rows of the llama family go from half-split to adjacent rope pairs, GPT-2's matrices are transposed and its
// fused Q, K and V taken apart. Such views own their bytes.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

/// The directory behind open_checkpoint. Errors as there.
Result<Checkpoint> open_hugging_face(const std::string& directory, const OpenOptions& options);

}  // namespace butterfly
