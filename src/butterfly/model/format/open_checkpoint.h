// Opens a model on disk, whatever its format, and says which model it is. Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

/// A GGUF file, or a directory with config.json, *.safetensors and tokenizer.json.
/// Errors: kNotFound, kIo, kBadData (hostile or truncated, names both values), kUnsupported (architecture, type).
Result<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options = {});

/// SHA-256, lower-case hex, over the content of the file, or of the directory's config.json and *.safetensors in
/// name order. Two machines with the same model agree on it.
Result<std::string> content_hash(const std::string& path);

/// Bytes that content_hash reads.
Result<std::uint64_t> content_bytes(const std::string& path);

}  // namespace butterfly
