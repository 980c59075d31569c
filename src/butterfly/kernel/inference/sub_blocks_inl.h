// How quantised types lie in a panel: block after block, each the quants of 16 outputs and 32 columns, then what they
// are multiplied with, so that one row reads one stream. Q8_0 and Q4_0: pairs of blocks, the quants of both and then
// their halves [2][16] of scales; a last block without a neighbour has its place. Types of sub-blocks: after each
// block's quants the floats [subs][16] of scales and, where the type has them, of minima. Internal linkage throughout
// (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

/// Of Q8_0 or Q4_0.
struct PackedPairs {
  bool nibbles;
  constexpr long quant_bytes() const { return (nibbles ? 16 : 32) * kPanel; }  // of a block
  constexpr long pair_bytes() const { return 2 * quant_bytes() + 4 * kPanel; }
  constexpr long quants_at(long block) const { return block * quant_bytes() + (block >> 1) * 4 * kPanel; }
  constexpr long scales_at(long block) const {
    return quants_at(block) + 2 * quant_bytes() - (block & 1) * (quant_bytes() - 2 * kPanel);
  }
  constexpr long panel_bytes(long blocks) const { return (blocks + 1) / 2 * pair_bytes(); }
};

struct PackedSubBlocks {
  int size;  // elements of a sub-block
  bool minima;
  bool nibbles;
  constexpr int subs() const { return 32 / size; }
  /// Whether a block's sub-blocks are added up before they meet x's scale.
  constexpr bool summed() const { return minima && subs() == 2; }
  constexpr long quant_bytes() const { return (nibbles ? 16 : 32) * kPanel; }
  constexpr long block_bytes() const { return quant_bytes() + 4 * kPanel * subs() * (minima ? 2 : 1); }
};

inline int sum_of(const BlockSums& sums) {
  return sums.lower + sums.upper;
}

template <int kSub>
inline int half_sum(const BlockSums& sums) {
  return kSub == 0 ? sums.lower : sums.upper;
}

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
