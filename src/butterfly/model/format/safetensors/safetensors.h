// The safetensors container (docs/formats/safetensors.md): a JSON header and the bytes it describes.
// Everything is checked while parsing: entries lie inside the bytes they were parsed from, which the file borrows, do
// not overlap and leave no gap. Immutable after parsing, thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

struct SafetensorsEntry {
  std::string type_name;      // "BF16"
  std::optional<DType> type;  // F32, F16, BF16; nothing for others
  std::vector<std::int64_t> shape;
  ByteSpan bytes;  // not necessarily aligned
};

class SafetensorsFile {
 public:
  /// `source` names the bytes in messages. Errors: kBadData naming both disagreeing values.
  static Result<SafetensorsFile> parse(ByteSpan bytes, std::string source);

  const std::string& source() const { return source_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }

 private:
  std::string source_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace butterfly
