// Matmuls of many rows by float weights, written once over a vector of 16 floats, V (simd_inl.h): columns are taken in
// blocks whose weights stay in the first-level cache while all rows of a chunk pass by. A chain that is stored between
// two blocks and loaded again is the same chain. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/linear_inl.h"

namespace butterfly {
namespace {

/// Columns of one block of one slice, for a tile of V::kBlockRows rows and up to V::kBlockPanels panels.
struct BlockStep {
  long begin;  // column
  long count;  // at most kLinearBlock
  bool first;  // of its slice: sums begin at zero
  int adds;    // see SliceStep; of a slice's last block
};

/// Rows of x that take part at once, packed: block after block, of each its rows, of each its columns, kLinearBlock
/// apart. Rows where they lie may all fall into the same set of the cache, which then holds few of them.
template <class V>
struct RowChunk {
  const float* x;
  float* sums;     // of each tile the stack on which slices wait
  long tile_sums;  // floats of one such stack
  long row;        // the first
  long tiles;
};

/// Calls `visit(step, depth)` for each block in order; `depth`: sums that wait when it begins.
template <class Visit>
inline void for_each_block(const SliceSteps& steps, const Visit& visit) {
  long depth = 0;
  for (int i = 0; i < steps.count; ++i) {
    const SliceStep& slice = steps.steps[i];
    for (long k = slice.begin; k < slice.end; k += kLinearBlock) {
      const bool last = k + kLinearBlock >= slice.end;
      visit(BlockStep{k, min_of(kLinearBlock, slice.end - k), k == slice.begin, last ? slice.adds : 0}, depth);
    }
    depth += 1 - slice.adds;
  }
}

template <PackedType kType>
constexpr long kWeightBytes = kType == PackedType::kF32 ? 4 * kPanel : 2 * kPanel;  // of one column of a panel
constexpr long kColumnsAtOnce = 8;                                                  // between them memory is asked for

/// Where a tile's results go, for its last block: that memory is asked for while the block is computed, a row at a
/// time, since more at once than the processor can wait for would stop it.
struct Outputs {
  const float* y = nullptr;
  const float* residual = nullptr;
  long stride = 0;
};

/// Weights of the block that comes next, of the first panel: each tile of this one asks for a part of them.
struct NextWeights {
  const unsigned char* at;
  long lines;  // that are asked for at once
};

template <int N>
inline __attribute__((always_inline)) void prefetch_row(const Outputs& out, long row) {
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    __builtin_prefetch(out.y + row * out.stride + n * kPanel, 1);
    if (out.residual != out.y) __builtin_prefetch(out.residual + row * out.stride + n * kPanel);
  }
}

template <class V, PackedType kType, int M, int N>
__attribute__((noinline)) void block_of_tile(const LinearArgs& a, const BlockStep& step, long panel, const float* x,
                                             const Outputs& out, NextWeights next, float* top) {
  constexpr long kBytes = kWeightBytes<kType>;
  V acc[M][N];
  if (step.first) {
    clear_sums(acc);
  } else {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::load(top + (m * N + n) * kPanel);
    }
  }
  const unsigned char* w = a.weights + panel * a.panel_stride + step.begin * kBytes;
  long rows = out.y != nullptr ? M : 0;
  for (long k = 0; k < step.count;) {
    if (rows > 0) prefetch_row<N>(out, --rows);
    for (long i = 0; i < next.lines; ++i, next.at += kCacheLine) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) __builtin_prefetch(next.at + n * a.panel_stride, 0, 2);
    }
    const long end = min_of(k + kColumnsAtOnce, step.count);
    for (; k < end; ++k) {
      V weights[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) weights[n] = load_weight<V, kType>(w + n * a.panel_stride, k);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const V value = V::set1(x[m * kLinearBlock + k]);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[m][n] = V::fma(weights[n], value, acc[m][n]);
      }
    }
  }
  push_sums(acc, step.adds, top);
}

template <class V>
inline void pack_rows(const LinearArgs& a, const SliceSteps& steps, long row, long rows, float* packed) {
  for_each_block(steps, [&](const BlockStep& step, long) {
    for (long r = 0; r < rows; ++r, packed += kLinearBlock) {
      const float* x = a.x + (row + r) * a.x_stride + step.begin;
      long k = 0;
      for (; k + kPanel <= step.count; k += kPanel) V::store(packed + k, V::load(x + k));
      for (; k < step.count; ++k) packed[k] = x[k];
    }
  });
}

template <class V, PackedType kType, int N>
void blocked_panels(const LinearArgs& a, const SliceSteps& steps, const RowChunk<V>& chunk, long panel) {
  constexpr int kRows = V::kBlockRows;
  constexpr long kSums = kRows * N * kPanel;
  const long cols = steps.steps[steps.count - 1].end;
  const float* x = chunk.x;
  for_each_block(steps, [&](const BlockStep& step, long depth) {
    const bool last = step.begin + step.count == cols;
    const unsigned char* from = a.weights + panel * a.panel_stride + (step.begin + step.count) * kWeightBytes<kType>;
    if (last) from = a.weights + (panel + N) * a.panel_stride + steps.steps[0].begin * kWeightBytes<kType>;
    const long turns = (step.count + kColumnsAtOnce - 1) / kColumnsAtOnce * chunk.tiles;
    const long lines = (kLinearBlock * kWeightBytes<kType> / kCacheLine + turns - 1) / turns;
    const long part = (step.count + kColumnsAtOnce - 1) / kColumnsAtOnce * lines * kCacheLine;
    for (long tile = 0; tile < chunk.tiles; ++tile, x += kRows * kLinearBlock) {
      const long row = chunk.row + tile * kRows;
      const long at = row * a.y_stride + panel * kPanel;
      Outputs out;
      if (last) out = {a.y + at, a.residual != nullptr ? a.residual + at : a.y + at, a.y_stride};
      float* sums = chunk.sums + tile * chunk.tile_sums;
      const NextWeights next{from + tile * part, lines};
      block_of_tile<V, kType, kRows, N>(a, step, panel, x, out, next, sums + depth * kSums);
      if (last) finish_tile<V>(a, sums, row, kRows, panel, N);
    }
  });
}

/// The rows that fill tiles, from the first on; gives their number. None where there is too little to do or no scratch.
template <class V, PackedType kType>
long linear_blocks(const LinearArgs& a, const SliceSteps& steps) {
  constexpr int kRows = V::kBlockRows;
  constexpr int kPanels = V::kBlockPanels;
  constexpr long kPanelsMin = 4;  // fewer are not worth packing rows for
  const long tiles = a.rows / kRows;
  if (tiles == 0 || a.panel_end - a.panel_begin < kPanelsMin) return 0;
  long cols = 0;
  long levels = 0;
  for_each_block(steps, [&](const BlockStep&, long depth) {
    cols += kLinearBlock;
    levels = depth + 1 > levels ? depth + 1 : levels;
  });
  RowChunk<V> chunk;
  chunk.tile_sums = levels * kRows * kPanels * kPanel;
  const long fit = min_of(a.scratch_floats / (kRows * cols + chunk.tile_sums), tiles);
  if (fit == 0) return 0;
  const long chunks = (tiles + fit - 1) / fit;
  for (long i = 0; i < chunks; ++i) {
    const long begin = tiles * i / chunks;
    chunk.tiles = tiles * (i + 1) / chunks - begin;
    chunk.row = begin * kRows;
    chunk.x = a.scratch;
    chunk.sums = a.scratch + chunk.tiles * kRows * cols;
    pack_rows<V>(a, steps, chunk.row, chunk.tiles * kRows, a.scratch);
    long panel = a.panel_begin;
    for (; panel + kPanels <= a.panel_end; panel += kPanels) blocked_panels<V, kType, kPanels>(a, steps, chunk, panel);
    for (; panel < a.panel_end; ++panel) blocked_panels<V, kType, 1>(a, steps, chunk, panel);
  }
  return tiles * kRows;
}

/// All rows: those that are left over as linear_tiles takes few.
template <class V, PackedType kType, class Table>
void linear_floats(const LinearArgs& a, const Table& table) {
  LinearArgs rest = a;
  const long done = linear_blocks<V, kType>(a, slice_steps(a));
  if (done == a.rows) return;
  rest.rows = a.rows - done;
  rest.x = a.x + done * a.x_stride;
  rest.y = a.y + done * a.y_stride;
  if (a.residual != nullptr) rest.residual = a.residual + done * a.y_stride;
  linear_tiles<V>(rest, table, a.cols * 4);
}

}  // namespace
}  // namespace butterfly
