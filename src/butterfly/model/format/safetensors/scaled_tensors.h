// Weights of safetensors files in two tensors, numbers of few bits and the scales of their blocks: MXFP4 as gpt-oss has
// it and FP8 as DeepSeek-V3 has it. One is put into the order of its twin in GGUF files, bit for bit; the other becomes
// bf16, as its publisher converts it. Rows are made when they are asked for, so a model is never in memory twice.
// Thread-safe.
#pragma once

#include <string>

#include "butterfly/base/range.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/format/safetensors/safetensors.h"

namespace butterfly {

/// Numbers and their scales. Borrows the file's entries.
struct ScaledTensor {
  const SafetensorsEntry* values = nullptr;
  const SafetensorsEntry* scales = nullptr;
};

/// Rows and columns of a matrix that share a scale, in FP8.
inline constexpr std::int64_t kFp8Block = 128;

/// values: F8_E4M3 [rows, cols]; scales: F32, F16 or BF16, one for each 128 x 128. Errors: kBadData naming both shapes,
/// kUnsupported naming the type. `name` is that of the values.
Status check_fp8(const ScaledTensor& tensor, const std::string& name);

/// Rows as bf16: the value times its scale in fp32, rounded once. check_fp8() has passed it.
WeightView fp8_rows(const ScaledTensor& tensor, const IndexRange& rows);

/// values: U8 [..., rows, groups, 16], a byte has the earlier element of two in its low bits; scales: U8 [..., rows,
/// groups], exponents of 2 plus 127. Errors: as above.
Status check_mxfp4(const ScaledTensor& tensor, const std::string& name);

/// Rows first, first + step, ... of all, the dimensions before them counted as rows. check_mxfp4() has passed it.
struct RowSteps {
  std::int64_t first = 0;
  std::int64_t step = 1;
  std::int64_t count = 0;
};
WeightView mxfp4_rows(const ScaledTensor& tensor, const RowSteps& rows);

}  // namespace butterfly
