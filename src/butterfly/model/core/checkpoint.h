// A model on disk, opened: configuration, vocabulary and weights, whatever its format. One door for all readers.
#pragma once

#include <memory>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

struct Checkpoint {
  std::string path;
  std::string format;  // "gguf v3", "hugging face"
  ModelConfig config;
  Vocabulary vocabulary;
  std::shared_ptr<const WeightSource> weights;  // null for a directory opened without weights_required
};

struct OpenOptions {
  /// A file with a vocabulary but no weights is an error unless this is false; then a directory's weights stay closed.
  bool weights_required = true;
  /// A tokenizer that this library cannot read, or that does not fit the model, is an error unless this is false; then
  /// the vocabulary is left out (TokenizerKind::kNone) and the model computes with token ids alone.
  bool vocabulary_required = true;
};

/// A GGUF file, or a directory with config.json, *.safetensors and tokenizer.json.
/// Errors: kNotFound, kIo, kBadData (hostile or truncated, names both values), kUnsupported (architecture, type).
Result<Checkpoint> open_checkpoint(const std::string& path, const OpenOptions& options = {});

/// SHA-256, lower-case hex, over the content of the file, or of the directory's config.json and *.safetensors in
/// name order. Two machines with the same model agree on it.
Result<std::string> content_hash(const std::string& path);

/// Bytes that content_hash reads.
Result<std::uint64_t> content_bytes(const std::string& path);

}  // namespace butterfly
