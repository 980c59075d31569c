// The quantised types of files other than q8_0 and q4_0, and what they are computed as: blocks of 32 elements that
// consist of one sub-block of 32 or two of 16, each with a float scale and, for some types, a float minimum: value =
// scale * quant (- minimum). Re-expressing a row is exact: decode_row() gives the same floats before and after.
//
// A computing block is: float scales[subs], float minima[subs] where the type has them, then 32 signed bytes, or 16
// bytes of nibbles (low ones are elements 0..15, high ones 16..31) that stand for quants by nibble_quants().
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "butterfly/base/bytes.h"
#include "butterfly/base/range.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

struct SubBlockForm {
  int size = kQuantBlock;  // elements of a sub-block: 16 or 32
  bool minima = false;
  bool nibbles = false;
  constexpr int subs() const { return kQuantBlock / size; }
  constexpr int quant_bytes() const { return nibbles ? kQuantBlock / 2 : kQuantBlock; }
  constexpr int float_bytes() const { return 4 * subs() * (minima ? 2 : 1); }
};

/// From kBytes16 to kNibblesMXFP4: computing types with sub-blocks.
constexpr bool has_sub_blocks(DType type) {
  return type >= DType::kBytes16 && type <= DType::kNibblesMXFP4;
}

/// has_sub_blocks(type).
constexpr SubBlockForm sub_block_form(DType type) {
  switch (type) {
    case DType::kBytes16:
      return {.size = 16};
    case DType::kBytes32Min:
      return {.minima = true};
    case DType::kNibbles16:
      return {.size = 16, .nibbles = true};
    case DType::kNibbles16Min:
      return {.size = 16, .minima = true, .nibbles = true};
    case DType::kNibbles32Min:
      return {.minima = true, .nibbles = true};
    default:
      return {.nibbles = true};
  }
}

/// Types of super-blocks of 256: each scale is a small integer times the super-block's, each minimum likewise.
constexpr bool has_shared_scales(DType type) {
  return (type >= DType::kQ2_K && type <= DType::kQ6_K) || type == DType::kIQ4_XS;
}

/// scale of sub-block s = half_to_float(scale) * scales[s], minimum likewise.
struct SuperBlockFactors {
  std::uint16_t scale = 0, minimum = 0;  // IEEE halves
  std::int8_t scales[kSuperBlock / 16] = {};
  std::int8_t minima[kSuperBlock / 16] = {};
};

/// A stored block of such a type; codes: the 256 bytes or nibbles of its computing type.
void take_super_block(DType type, ByteSpan stored, SuperBlockFactors& factors, std::span<std::uint8_t> codes);

/// The quant that each nibble of a computing type stands for.
const std::array<std::int8_t, 16>& nibble_quants(DType type);

/// Columns `cols` of a stored row, as the computing type of `type`. row: the whole row; cols: multiples of 32; out:
/// row_bytes(computing_type(type), cols.size()). Where type is its own computing type, the bytes are copied.
void to_computing_type(DType type, ByteSpan row, const IndexRange& cols, MutableByteSpan out);

/// A row of a type for which computing_type(type) != type, or has_sub_blocks(type), as floats.
void decode_sub_blocks(DType type, ByteSpan bytes, std::span<float> out);

/// All of them that files store.
bool can_encode_sub_blocks(DType type);

/// values: whole blocks of such a type. q4_1, q5_0, q5_1 and mxfp4: the bits that llama.cpp's quantiser writes; the
/// others: the scales of least squares among 20 grids around the one that spans a sub-block, where q2_k weighs an error
/// by its value's magnitude and q3_k by its square.
void encode_sub_blocks(DType type, std::span<const float> values, MutableByteSpan out);

}  // namespace butterfly
