// Opens a model on disk, whatever its format, and says which model it is. Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

/// A GGUF file, or a directory with config.json, *.safetensors and tokenizer.json.
/// Errors: kNotFound, kIo, kBadData (hostile or truncated, names both values), kUnsupported (architecture, type).
Result<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options = {});

/// SHA-256, lower-case hex, over the content of the file, or of the directory's config.json and *.safetensors in
/// name order. Two machines with the same model agree on it.
Result<std::string> content_hash(const std::string& path);

/// Whether the files of a model are as they were when they were opened, all of them, for as long as they are open.
/// Errors: kBadData, kIo.
Status checkpoint_unchanged(const std::string& path);

/// The files that content_hash reads. Errors: kNotFound, kIo.
Result<std::vector<std::string>> content_paths(const std::string& path);

/// Bytes that content_hash reads.
Result<std::uint64_t> content_bytes(const std::string& path);

}  // namespace butterfly
