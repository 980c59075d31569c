// Any checkpoint to a GGUF file, in another storage type where asked for. Used by `butterfly convert`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/model/format/type_mix.h"

namespace butterfly {

struct ConvertProgress {
  std::string tensor{};
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_total = 0;
};

struct ConvertOptions {
  /// The type of every matrix but the position embedding, which stays exact; nothing: as stored. Vectors are f32.
  std::optional<DType> type{};
  std::optional<TypeMix> mix{};                            // instead of one type
  std::function<void(const ConvertProgress&)> progress{};  // before each tensor
  std::stop_token stop{};
};

struct ConvertReport {
  std::uint64_t file_bytes = 0;
  /// What was rounded: sqrt(sum (stored - value)^2 / sum value^2) over all such matrices, and of the worst one.
  double error = 0;
  double largest_error = 0;
  std::string largest_error_in{};
  /// Matrices stored as f16 because `type` needs rows of whole blocks, or none of the mix's types fits.
  std::vector<std::string> stored_as_f16{};
};

/// Writes `out_path` whole or not at all; it may be the file that `checkpoint` came from.
/// Errors: kBadData for a weight that is not finite or beyond the range of `type`; kUnsupported for a configuration
/// that GGUF cannot express; kIo naming the path and the system's reason; kCancelled.
Result<ConvertReport> convert(const Checkpoint& checkpoint, const std::string& out_path, const ConvertOptions& options);

}  // namespace butterfly
