// How packed types of sub-blocks lie in a panel: block after block, each the quants of 16 outputs and 32 columns, then
// the floats [subs][16] of scales and, where the type has them, of minima. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

struct PackedSubBlocks {
  int size;  // elements of a sub-block
  bool minima;
  bool nibbles;
  constexpr int subs() const { return 32 / size; }
  constexpr long quant_bytes() const { return (nibbles ? 16 : 32) * kPanel; }
  constexpr long block_bytes() const { return quant_bytes() + 4 * kPanel * subs() * (minima ? 2 : 1); }
};

constexpr bool is_sub_blocks(PackedType type) {
  return type >= PackedType::kBytes16;
}

/// is_sub_blocks(type).
constexpr PackedSubBlocks packed_sub_blocks(PackedType type) {
  return {.size = type == PackedType::kBytes32Min || type == PackedType::kNibbles32 || type == PackedType::kNibbles32Min
                      ? 32
                      : 16,
          .minima =
              type == PackedType::kBytes32Min || type == PackedType::kNibbles16Min || type == PackedType::kNibbles32Min,
          .nibbles = type >= PackedType::kNibbles16};
}

}  // namespace
}  // namespace butterfly
