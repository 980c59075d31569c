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
    const long at = (row - a.first_row) * blocks + (kOrder == RowOrder::kGathered ? block * M : block);
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

/// Rows whose activations stay in the last-level cache while all panels pass by: a whole number of tiles, one at least.
inline long rows_at_once(long row_bytes, long tile_rows) {
  constexpr long kBytes = 2 * 1024 * 1024;
  const long fit = kBytes / row_bytes / tile_rows * tile_rows;
  return fit > tile_rows ? fit : tile_rows;
}

/// Activations in the order in which tiles read them: one stream, where rows that lie apart take more address registers
/// than there are, and many of them more streams than a processor follows.
struct GatheredRows {
  static constexpr long kTileRowsMax = 12;

  /// In memory of bytes().
  GatheredRows(unsigned char* memory, long rows, long cols)
      : quants(reinterpret_cast<signed char*>(memory)),
        scales(reinterpret_cast<float*>(memory + rows * cols)),
        sums(reinterpret_cast<BlockSums*>(memory + rows * cols + rows * (cols / 32) * 4)) {}

  /// What a matmul of these rows gathers at once, at most.
  static long bytes(long rows, long cols) {
    const long at_once = rows_at_once(cols, 1);
    const long most = at_once > kTileRowsMax ? at_once : kTileRowsMax;
    return min_of(rows, most) * (cols + cols / 32 * static_cast<long>(sizeof(float) + sizeof(BlockSums)));
  }

  /// Rows [begin, end) for tiles of this number of rows. With an offset, the lower sums are those of whole blocks times
  /// that.
  void gather(const LinearArgs& a, long begin, long end, long tile_rows, int offset) const {
    const long blocks = a.cols / 32;
    for (long row = begin; row < end; ++row) {
      const long first = (row - begin) / tile_rows * tile_rows;
      const long rows = min_of(tile_rows, end - begin - first);
      for (long block = 0; block < blocks; ++block) {
        const long from = row * blocks + block;
        const long to = first * blocks + block * rows + row - begin - first;
        __builtin_memcpy(quants + to * 32, a.xq + from * 32, 32);
        scales[to] = a.x_scales[from];
        sums[to] = a.x_sums[from];
        if (offset != 0) sums[to].lower = offset * sum_of(a.x_sums[from]);
      }
    }
  }

  signed char* quants;
  float* scales;
  BlockSums* sums;
};

}  // namespace
}  // namespace butterfly
