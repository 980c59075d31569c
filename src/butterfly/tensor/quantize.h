// Rows of floats to the storage types of model files and back. Deterministic: the same bits on every CPU, and the bits
// that llama.cpp's quantiser writes, but for the types of blocks of 256 and iq4_nl, whose scales each program searches
// for in its own way. Values no type can hold are clamped, NaN becomes 0 in quantised types. Thread-safe.
#pragma once

#include <span>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// values: [n], a whole number of blocks; out: row_bytes(type, n) bytes; can_encode(type).
/// kQ8_0: scale = max|x| / 127, quant = round half away from zero(x / scale).
/// kQ4_0: scale = m / -8 where m is the value of largest magnitude (the first of equals), quant = floor(x / scale
/// + 8.5) clamped to 15. kQ5_0 likewise with -16, 16.5 and 31; kQ4_1 and kQ5_1 count from the block's lowest value. The
/// quotients use the scale before it is rounded to a half. kInt8: as kQ8_0, but one scale for the whole row.
void encode_row(DType type, std::span<const float> values, MutableByteSpan out);

/// Every type of files but i32; the list, for messages.
bool can_encode(DType type);
std::string encodable_types();

/// bytes: row_bytes(type, n); out: [n]; any type but kI32. Bit for bit what the gguf package of Python makes of them.
void decode_row(DType type, ByteSpan bytes, std::span<float> out);

/// The largest magnitude that survives encode_row as a finite number.
float largest_value(DType type);

}  // namespace butterfly
