// Matmuls written once over a vector of 16 floats, V (simd_inl.h): slices, their tree, tiles. The order of operations
// is reference.cc's. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

// --- matmuls with float weights -------------------------------------------------------------------------------

/// Straight into the first-level cache for those that take 4 bytes each; halves as the processor prefers.
template <PackedType kType>
inline __attribute__((always_inline)) void prefetch_floats(const unsigned char* at, Prefetch how) {
  if constexpr (kType == PackedType::kF32) {
    constexpr long kFloatsAhead = 4096;
    __builtin_prefetch(at + kFloatsAhead);
  } else {
    constexpr long kHalvesAhead = 4096;  // two panels pass by at once
    if (how == Prefetch::kOneStep) {
      __builtin_prefetch(at + kHalvesAhead);
    } else {
      __builtin_prefetch(at + 2 * kHalvesAhead, 0, 2);
    }
  }
}

template <class V, PackedType kType>
inline V load_weight(const unsigned char* panel, long k) {
  if constexpr (kType == PackedType::kF32) return V::load(reinterpret_cast<const float*>(panel) + k * kPanel);
  if constexpr (kType == PackedType::kF16)
    return V::load_half(reinterpret_cast<const unsigned short*>(panel) + k * kPanel);
  if constexpr (kType == PackedType::kBF16)
    return V::load_bf16(reinterpret_cast<const unsigned short*>(panel) + k * kPanel);
}

/// A slice of a matmul. The tree of slices is folded while they are computed: sums wait on a stack, and each new one is
/// added to as many of its topmost as it completes nodes of the tree with.
struct SliceStep {
  long begin;
  long end;
  int adds;
};

/// The slices of a sum that have columns, in order.
struct SliceSteps {
  int count = 0;
  SliceStep steps[kReductionSlices];
  // The same additions for sums that are all kept, by their number here: sum `to` += sum `from`.
  int folds = 0;
  struct {
    int to;
    int from;
  } fold[kReductionSlices - 1];
};

/// Sums that wait at most, the newest included: one for each level of the tree.
constexpr int kWaitingMax = 6;
static_assert(1 << (kWaitingMax - 1) == kReductionSlices);

inline void set_slice_steps(const LinearSum& sum, SliceSteps& steps) {
  int sums[kWaitingMax];  // of the subtrees that wait: the number of its sum, -1 where none of its slices has columns
  int waiting = 0;
  for (int slice = 0; slice < sum.slices; ++slice) {
    const bool filled = sum.slice_begin[slice] < sum.slice_begin[slice + 1];
    sums[waiting++] = filled ? steps.count : -1;
    if (filled) steps.steps[steps.count++] = {sum.slice_begin[slice], sum.slice_begin[slice + 1], 0};
    for (int width = 1; (slice & width) != 0; width *= 2) {
      const int right = sums[--waiting];
      int& left = sums[waiting - 1];
      if (left < 0) {
        left = right;
      } else if (right >= 0) {
        ++steps.steps[steps.count - 1].adds;
        steps.fold[steps.folds++] = {left, right};
      }
    }
  }
}

/// Of all sums of a matmul.
struct SumSteps {
  explicit SumSteps(const LinearArgs& a) {
    for (int i = 0; i < a.sum_count; ++i) set_slice_steps(a.sums[i], of[i]);
  }
  SliceSteps of[kLinearSums];
};

template <class V, int M, int N>
inline __attribute__((always_inline)) void clear_sums(V (&acc)[M][N]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[m][n] = V::set1(0.0f);
  }
}

/// The end of a slice: adds what waits below `top`, and waits there itself. Gives the new top. One row's sums are only
/// kept: how often to add is hard to foresee for the processor, and one row is soon done.
template <class V, int M, int N>
inline __attribute__((always_inline)) float* push_sums(V (&acc)[M][N], int adds, float* top) {
  if constexpr (M > 1) {
    for (; adds > 0; --adds) {
      top -= M * N * kPanel;
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[m][n] = V::add(V::load(top + (m * N + n) * kPanel), acc[m][n]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) V::store(top + (m * N + n) * kPanel, acc[m][n]);
  }
  return top + M * N * kPanel;
}

/// The tree of one row's sums of all slices, into the first.
template <class V>
inline void fold_one_row(const SliceSteps& steps, float* sums, int panels) {
  const long size = static_cast<long>(panels) * kPanel;
  for (int i = 0; i < steps.folds; ++i) {
    float* to = sums + steps.fold[i].to * size;
    const float* from = sums + steps.fold[i].from * size;
    for (long at = 0; at < size; at += kPanel) V::store(to + at, V::add(V::load(to + at), V::load(from + at)));
  }
}

inline const unsigned char* panel_of(const LinearArgs& a, long panel) {
  return a.weights + (panel - a.first_panel) * a.panel_stride;
}

/// Pushes one slice of outputs [m, panel * 16 + n * 16 + i], the chains over its k, onto `top`; gives the new top.
template <class V, PackedType kType, int M, int N>
inline __attribute__((always_inline)) float* float_slice(const LinearArgs& a, long row, long panel,
                                                         const SliceStep& step, float* top) {
  constexpr long kBytes = kType == PackedType::kF32 ? 4 * kPanel : 2 * kPanel;
  V acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  const float* x = a.x + row * a.x_stride;
  for (long k = step.begin; k < step.end; ++k) {
    V weights[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      weights[n] = load_weight<V, kType>(w + n * a.panel_stride, k);
      if constexpr (M == 1) prefetch_floats<kType>(w + n * a.panel_stride + k * kBytes, a.prefetch);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V value = V::set1(x[m * a.x_stride + k]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(weights[n], value, acc[m][n]);
    }
  }
  return push_sums(acc, step.adds, top);
}

/// The same of gathered rows. A few wait for their weights, and ask for them ahead.
template <class V, PackedType kType, int M, int N>
inline __attribute__((always_inline)) float* gathered_float_slice(const LinearArgs& a, long row, long panel,
                                                                  const SliceStep& step, float* top) {
  constexpr long kBytes = kType == PackedType::kF32 ? 4 * kPanel : 2 * kPanel;
  constexpr long kColumns = GatheredFloats::kColumns;
  V acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  const float* x = a.x + (row - a.first_row) * GatheredFloats::blocks(a.cols) * kColumns;
  constexpr long kFewRows = 24;
  const bool few = a.rows <= kFewRows;
  for (long begin = step.begin; begin < step.end; begin += kColumns) {
    const float* of_block = x + begin * M;
    const long end = min_of(begin + kColumns, step.end);
    for (long k = begin; k < end; ++k, ++of_block) {
      V weights[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        weights[n] = load_weight<V, kType>(w + n * a.panel_stride, k);
        if (few) prefetch_floats<kType>(w + n * a.panel_stride + k * kBytes, a.prefetch);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const V value = V::set1(of_block[m * kColumns]);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[m][n] = V::fma(weights[n], value, acc[m][n]);
      }
    }
  }
  return push_sums(acc, step.adds, top);
}

// --- the loop over tiles, for all types ------------------------------------------------------------------------

/// Bytes that come next in memory, asked for into the second-level cache a part with each turn.
class LinesAhead {
 public:
  LinesAhead(const unsigned char* at, long bytes, long turns)
      : at_(at), end_(at + bytes), step_((bytes / turns / kCacheLine + 1) * kCacheLine) {}

  void ask() {
    const unsigned char* const end = end_ - at_ > step_ ? at_ + step_ : end_;
    for (; at_ < end; at_ += kCacheLine) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const unsigned char* at_;
  const unsigned char* end_;
  long step_;
};

/// Weights of the panels that come next: a tile of many rows asks for its share of them, a little with each slice, so
/// that they are in the second-level cache when it is their turn.
struct WeightsAhead {
  const unsigned char* begin = nullptr;
  long bytes = 0;
  long slice_bytes = 0;  // what a tile asks for with each slice
};

using TileFunction = void (*)(const LinearArgs& a, const SliceSteps& steps, long row, long panel,
                              const WeightsAhead& ahead, float* top);

template <auto kSlice>
__attribute__((noinline)) float* one_slice(const LinearArgs& a, long row, long panel, const SliceStep& step,
                                           float* top) {
  return kSlice(a, row, panel, step, top);
}

/// Whether a tile calls a function for each slice, which then has all registers, or has it in its loop: better where
/// few addresses and little else are kept beside the sums.
enum class SliceCode { kCalled, kInLoop };

/// All slices of a tile of M rows.
template <auto kSlice, int M, SliceCode kCode = M == 1 ? SliceCode::kInLoop : SliceCode::kCalled>
void all_slices(const LinearArgs& a, const SliceSteps& steps, long row, long panel, const WeightsAhead& ahead,
                float* top) {
  long asked = 0;
  for (int i = 0; i < steps.count; ++i) {
    if constexpr (M > 1) {
      const long end = min_of(asked + ahead.slice_bytes, ahead.bytes);
      for (; asked < end; asked += kCacheLine) __builtin_prefetch(ahead.begin + asked, 0, 2);
    }
    if constexpr (kCode == SliceCode::kInLoop) {
      top = kSlice(a, row, panel, steps.steps[i], top);
    } else {
      top = one_slice<kSlice>(a, row, panel, steps.steps[i], top);
    }
  }
}

/// The tile functions of one type: [rows - 1][panels - 1].
template <int kM, int kN>
struct TileTable {
  static constexpr int kRows = kM;
  static constexpr int kPanels = kN;
  TileFunction functions[kM][kN];
};

/// How many rows the tiles of a table have: 1 to kMax. They differ in nothing else, so a sanitizer, which takes minutes
/// to compile them, has the first three.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kTileRowsMax = 3;
#else
constexpr int kTileRowsMax = 16;
#endif
template <int... M>
struct RowCounts {};
template <int kMax, int... M>
struct CountsUpTo : CountsUpTo<kMax - 1, kMax, M...> {};
template <int... M>
struct CountsUpTo<0, M...> {
  using Counts = RowCounts<M...>;
};
template <int kMax>
using UpTo = typename CountsUpTo<(kMax < kTileRowsMax) ? kMax : kTileRowsMax>::Counts;

/// Of one row of halves, whose sums wait for themselves longer than for their weights: over two panels at once.
template <class V, PackedType kType>
constexpr TileTable<1, 2> kOneRowOfHalves = {
    {{all_slices<float_slice<V, kType, 1, 1>, 1>, all_slices<float_slice<V, kType, 1, 2>, 1>}}};

template <class V>
void finish_tile(const LinearSum& sum, long out_rows, const float* tile, long row, int rows, long panel, int panels) {
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < panels; ++n) {
      const float* values = tile + (m * panels + n) * kPanel;
      const long o = (panel + n) * kPanel;
      const long at = (row + m) * sum.y_stride + o;
      if (o + kPanel <= out_rows) {
        V y = V::load(values);
        if (sum.bias != nullptr) y = V::add(y, V::load(sum.bias + o));
        if (sum.residual != nullptr) y = V::add(V::load(sum.residual + at), y);
        V::store(sum.y + at, y);
        continue;
      }
      for (long i = 0; o + i < out_rows; ++i) {
        float y = values[i];
        if (sum.bias != nullptr) y = y + sum.bias[o + i];
        if (sum.residual != nullptr) y = sum.residual[at + i] + y;
        sum.y[at + i] = y;
      }
    }
  }
}

/// Asks for the lines of y and of the residual that finish_tile is going to touch: they are a row apart, so the
/// processor does not foresee them, and a tile takes longer than they do.
inline void prefetch_outputs(const LinearSum& sum, long row, int rows, long panel, int panels) {
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < panels; ++n) {
      const long at = (row + m) * sum.y_stride + (panel + n) * kPanel;
      __builtin_prefetch(sum.y + at, 1);
      if (sum.residual != nullptr) __builtin_prefetch(sum.residual + at);
    }
  }
}

/// One sum of one or more panels for rows [row_begin, row_end).
template <class V, class Table>
inline void sum_of_panels(const LinearArgs& a, const Table& table, const LinearSum& sum, const SliceSteps& steps,
                          long row_begin, long row_end, long panel, int panels, WeightsAhead ahead, float* tiles) {
  for (long row = row_begin; row < row_end; row += Table::kRows) {
    const int rows = static_cast<int>(min_of(Table::kRows, row_end - row));
    prefetch_outputs(sum, row, rows, panel, panels);
    table.functions[rows - 1][panels - 1](a, steps, row, panel, ahead, tiles);
    const long asked = min_of(ahead.slice_bytes * steps.count, ahead.bytes);
    ahead = {ahead.begin + asked, ahead.bytes - asked, ahead.slice_bytes};
    if (rows == 1) fold_one_row<V>(steps, tiles, panels);
    finish_tile<V>(sum, a.out_rows, tiles, row, rows, panel, panels);
  }
}

/// The panels from `panel` on, to be asked for during the `tiles` tiles before them. None where those are too few to
/// hide it, or where the weights would push out those that are in use.
inline WeightsAhead weights_ahead(const LinearArgs& a, long panel, int panels_max, int slices, long tiles) {
  constexpr long kTilesLeast = 2;
  constexpr long kBytesMax = 128 * 1024;
  const long bytes = min_of(panels_max, a.panel_end - panel) * a.panel_stride;
  if (tiles < kTilesLeast || bytes > kBytesMax || slices == 0) return {};
  const unsigned char* begin = a.weights + panel * a.panel_stride;
  return {begin, bytes, (bytes / (slices * tiles) / kCacheLine + 1) * kCacheLine};
}

/// A panel of halves as floats.
template <class V, PackedType kType>
void unpack_halves(const unsigned char* panel, long cols, unsigned char* to) {
  for (long k = 0; k < cols; ++k) {
    if (k % 2 == 0) prefetch_floats<kType>(panel + 2 * kPanel * k, Prefetch::kTwoSteps);
    V::store(reinterpret_cast<float*>(to) + k * kPanel, load_weight<V, kType>(panel, k));
  }
}

/// Super-blocks and halves are unpacked, a tile's panels at a time, into a.scratch: `table` is of what they become.
/// Activations are gathered where the table's functions read them so, with what kTileSums makes of their sums, if it is
/// not null.
template <class V, PackedType kStored = PackedType::kF32, RowOrder kOrder = RowOrder::kApart,
          TileSums kTileSums = nullptr, class Table>
void linear_tiles(const LinearArgs& a, const Table& table, long x_row_bytes) {
  static_assert(Table::kPanels <= kTilePanels);
  // A panel lies in the second-level cache and is read once for each of its tiles, the activations at a sixth of that
  // rate.
  const long chunk = rows_at_once(x_row_bytes, Table::kRows);
  constexpr int kSums = kWaitingMax * Table::kRows > kReductionSlices ? kWaitingMax * Table::kRows : kReductionSlices;
  alignas(64) float tiles[kSums * Table::kPanels * kPanel];
  const SumSteps steps(a);
  LinearArgs of_tiles = a;
  constexpr bool kUnpacks = is_super_blocks(kStored) || is_halves(kStored);
  if constexpr (kUnpacks) {
    of_tiles.weights = a.scratch;
    of_tiles.panel_stride = scratch_bytes(kStored, a.cols) / kTilePanels;
  }
  // One row: one stream through memory, but for a table that is of one row.
  const int panels_max = a.rows == 1 && Table::kRows > 1 ? 1 : Table::kPanels;
  for (long chunk_begin = 0; chunk_begin < a.rows; chunk_begin += chunk) {
    const long chunk_end = min_of(chunk_begin + chunk, a.rows);
    if constexpr (kOrder == RowOrder::kGatheredFloats) {
      auto* const rows = reinterpret_cast<float*>(a.gathered);
      GatheredFloats::gather(a, chunk_begin, chunk_end, Table::kRows, rows);
      of_tiles.x = rows;
      of_tiles.first_row = chunk_begin;
    }
    if constexpr (kOrder == RowOrder::kGathered) {
      const GatheredRows rows(a.gathered, chunk_end - chunk_begin, a.cols);
      rows.gather(a, chunk_begin, chunk_end, Table::kRows, kTileSums);
      of_tiles.xq = rows.quants;
      of_tiles.x_scales = rows.scales;
      of_tiles.x_sums = rows.sums;
      of_tiles.first_row = chunk_begin;
    }
    for (long panel = a.panel_begin; panel < a.panel_end; panel += panels_max) {
      const int panels = static_cast<int>(min_of(panels_max, a.panel_end - panel));
      const long tile_count = (chunk_end - chunk_begin + Table::kRows - 1) / Table::kRows;
      const WeightsAhead ahead = weights_ahead(a, panel + panels, panels_max, steps.of[0].count, tile_count);
      if constexpr (kUnpacks) {
        of_tiles.first_panel = panel;
        for (int i = 0; i < panels; ++i) {
          unsigned char* to = a.scratch + i * of_tiles.panel_stride;
          if constexpr (is_halves(kStored)) {
            unpack_halves<V, kStored>(panel_of(a, panel + i), a.cols, to);
          } else {
            unpack_panel<V, kStored>(panel_of(a, panel + i), a.cols / 32, to);
          }
        }
      }
      // Each panel's columns lie beside each other: weights are read in the order in which they come.
      for (int i = 0; i < a.sum_count; ++i) {
        sum_of_panels<V>(of_tiles, table, a.sums[i], steps.of[i], chunk_begin, chunk_end, panel, panels,
                         i == 0 ? ahead : WeightsAhead{}, tiles);
      }
    }
  }
}

}  // namespace
}  // namespace butterfly
