// How matmuls find the activations of a tile: row by row as they were given, or gathered in the order in which the tile
// reads them. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

/// How the activations of a tile lie: each row by itself, or gathered, of each block all rows one after the other.
enum class RowOrder { kApart, kGathered, kGatheredFloats };

/// A block of M rows of quantised activations.
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

/// Rows that a matmul of `rows` gathers at once, at most.
inline long rows_gathered(long rows, long row_bytes) {
  constexpr long kTileRowsMax = 12;
  const long at_once = rows_at_once(row_bytes, 1);
  return min_of(rows, at_once > kTileRowsMax ? at_once : kTileRowsMax);
}

/// What a tile reads as the sums of a block of a row's quants: those are given, and what they add up to.
using TileSums = BlockSums (*)(const signed char* quants, const BlockSums& sums);

/// Quantised activations in the order in which tiles read them: one stream, where rows that lie apart take more address
/// registers than there are, and many of them more streams than a processor follows.
struct GatheredRows {
  /// In memory of bytes().
  GatheredRows(unsigned char* memory, long rows, long cols)
      : quants(reinterpret_cast<signed char*>(memory)),
        scales(reinterpret_cast<float*>(memory + rows * cols)),
        sums(reinterpret_cast<BlockSums*>(memory + rows * cols + rows * (cols / 32) * 4)) {}

  static long bytes(long rows, long cols) {
    return rows_gathered(rows, cols) * (cols + cols / 32 * static_cast<long>(sizeof(float) + sizeof(BlockSums)));
  }

  /// Rows [begin, end) for tiles of this number of rows.
  void gather(const LinearArgs& a, long begin, long end, long tile_rows, TileSums tile_sums) const {
    const long blocks = a.cols / 32;
    for (long row = begin; row < end; ++row) {
      const long first = (row - begin) / tile_rows * tile_rows;
      const long rows = min_of(tile_rows, end - begin - first);
      for (long block = 0; block < blocks; ++block) {
        const long from = row * blocks + block;
        const long to = first * blocks + block * rows + row - begin - first;
        __builtin_memcpy(quants + to * 32, a.xq + from * 32, 32);
        scales[to] = a.x_scales[from];
        sums[to] = tile_sums == nullptr ? a.x_sums[from] : tile_sums(a.xq + from * 32, a.x_sums[from]);
      }
    }
  }

  signed char* quants;
  float* scales;
  BlockSums* sums;
};

/// Floats likewise, a line of each row after the other: rows that are a power of two apart share few places in a cache.
struct GatheredFloats {
  static constexpr long kColumns = 16;
  static constexpr long blocks(long cols) { return (cols + kColumns - 1) / kColumns; }

  static long bytes(long rows, long cols) { return rows_gathered(rows, cols * 4) * blocks(cols) * kColumns * 4; }

  /// Rows [begin, end) for tiles of this number of rows, into memory of bytes().
  static void gather(const LinearArgs& a, long begin, long end, long tile_rows, float* to) {
    for (long first = begin; first < end; first += tile_rows) {
      const long rows = min_of(tile_rows, end - first);
      for (long col = 0; col < a.cols; col += kColumns, to += rows * kColumns) {
        const long count = min_of(kColumns, a.cols - col);
        for (long row = 0; row < rows; ++row) {
          const float* from = a.x + (first + row) * a.x_stride + col;
          if (count == kColumns) {
            __builtin_memcpy(to + row * kColumns, from, kColumns * sizeof(float));
          } else {
            for (long i = 0; i < count; ++i) to[row * kColumns + i] = from[i];
          }
        }
      }
    }
  }
};

/// Of LinearArgs::gathered.
inline long gathered_bytes(PackedType type, long rows, long cols) {
  const bool floats = type == PackedType::kF32 || is_halves(type);
  return floats ? GatheredFloats::bytes(rows, cols) : GatheredRows::bytes(rows, cols);
}

}  // namespace
}  // namespace butterfly
