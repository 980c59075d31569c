// How matmuls find the quantised activations of a tile: row by row as they were given, or gathered in the order in
// which the tile reads them. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

/// How the activations of a tile lie: each row by itself, or gathered, of each block all rows one after the other.
enum class RowOrder { kApart, kGathered };

/// A block of M rows of activations.
template <RowOrder kOrder, int M>
struct RowsOfBlock {
  RowsOfBlock(const LinearArgs& a, long row, long block) {
    const long blocks = a.cols / 32;
    const long at = row * blocks + (kOrder == RowOrder::kGathered ? block * M : block);
    quants = a.xq + at * 32;
    scales = a.x_scales + at;
    sums = a.x_sums + at;
    stride = kOrder == RowOrder::kGathered ? 1 : blocks;
  }
  const signed char* quants;
  const float* scales;
  const BlockSums* sums;
  long stride;  // from row to row, in blocks
};

/// Activations of few rows in the order in which tiles read them: rows that lie apart take more address registers than
/// there are.
struct GatheredRows {
  static constexpr long kBlocksMax = 16384;
  alignas(64) signed char quants[kBlocksMax * 32];
  float scales[kBlocksMax];
  BlockSums sums[kBlocksMax];

  static bool fits(const LinearArgs& a) { return a.rows * (a.cols / 32) <= kBlocksMax; }

  /// For tiles of this number of rows. With an offset, the lower sums are those of whole blocks times that.
  void gather(const LinearArgs& a, long tile_rows, int offset) {
    const long blocks = a.cols / 32;
    for (long row = 0; row < a.rows; ++row) {
      const long first = row / tile_rows * tile_rows;
      const long rows = min_of(tile_rows, a.rows - first);
      for (long block = 0; block < blocks; ++block) {
        const long from = row * blocks + block;
        const long to = first * blocks + block * rows + row - first;
        __builtin_memcpy(quants + to * 32, a.xq + from * 32, 32);
        scales[to] = a.x_scales[from];
        sums[to] = a.x_sums[from];
        if (offset != 0) sums[to].lower = offset * sum_of(a.x_sums[from]);
      }
    }
  }
};

}  // namespace
}  // namespace butterfly
