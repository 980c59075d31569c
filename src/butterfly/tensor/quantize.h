// Rows of floats to the storage types of model files and back. Deterministic: the same bits on every CPU, and the bits
// that llama.cpp's quantiser writes. Values no type can hold are clamped, NaN becomes 0 in quantised types.
// Thread-safe.
#pragma once

#include <span>

#include "butterfly/base/bytes.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// values: [n], a whole number of blocks; out: row_bytes(type, n) bytes. `type` is any but kI32.
/// kQ8_0: scale = max|x| / 127, quant = round half away from zero(x / scale).
/// kQ4_0: scale = m / -8 where m is the value of largest magnitude (the first of equals), quant = floor(x / scale
/// + 8.5) clamped to 15. The quotients use the scale before it is rounded to a half.
void encode_row(DType type, std::span<const float> values, MutableByteSpan out);

/// bytes: row_bytes(type, n); out: [n]. Exact.
void decode_row(DType type, ByteSpan bytes, std::span<float> out);

/// The largest magnitude that survives encode_row as a finite number.
float largest_value(DType type);

}  // namespace butterfly
