// Rows of floats to the types that activations may travel in, and back, by the fastest instructions of a node.
// Thread-safe.
#pragma once

#include <span>

#include "butterfly/base/bytes.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

/// As encode_row() and decode_row() of tensor/quantize.h, with the same bits. values: [n], n a whole number of blocks;
/// bytes: row_bytes(type, n).
void encode_row(const Kernels& kernels, DType type, std::span<const float> values, MutableByteSpan bytes);
void decode_row(const Kernels& kernels, DType type, ByteSpan bytes, std::span<float> values);

}  // namespace butterfly
