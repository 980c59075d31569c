// What is asked of every writer of models. Plain values.
#pragma once

#include <optional>
#include <string>

#include "butterfly/tensor/dtype.h"

namespace butterfly {

struct ExportOptions {
  /// The type of every matrix but the position embedding, which stays exact; nothing: as it is. Vectors are F32.
  std::optional<DType> type{};
  /// Content of tokenizer.json for a directory; empty: none is written. A GGUF file holds the vocabulary itself.
  std::string tokenizer_json{};
};

}  // namespace butterfly
