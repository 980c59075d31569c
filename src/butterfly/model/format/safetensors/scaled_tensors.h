// Weights of safetensors files in two tensors, numbers of few bits and the scales of their blocks or rows: MXFP4 as
// gpt-oss has it, FP8 as DeepSeek-V3 has it, int8 as compressed-tensors has it. The first is put into the order of its
// twin in GGUF files, bit for bit; the second becomes bf16, as its publisher converts it; scales of the third are
// halves. Rows are made when they are asked for, so a model is never in memory twice. Thread-safe.
#pragma once

#include <functional>
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

/// values: I8 [rows, cols]; scales: F32, F16 or BF16, [rows, 1], [rows] or [1]. Errors: as above.
Status check_int8(const ScaledTensor& tensor, const std::string& name);

/// Rows in the order that `stored_row` says, as kInt8: scales are rounded to halves. cols: whole blocks of 32.
WeightView int8_rows(const ScaledTensor& tensor, const IndexRange& rows,
                     const std::function<std::int64_t(std::int64_t)>& stored_row);

/// Rows as bf16, for what is not multiplied as it is stored.
WeightView int8_as_bf16(const ScaledTensor& tensor, const IndexRange& rows);

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
