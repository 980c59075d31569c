// A model as every reader gives it: configuration, vocabulary and weights, whatever the format of its files. Plain
// values.
#pragma once

#include <memory>
#include <string>

#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

struct Checkpoint {
  std::string path;
  std::string stamp{};  // which files they were, and when they were last written to, before they were opened
  std::string format;   // "gguf v3", "hugging face"
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

}  // namespace butterfly
