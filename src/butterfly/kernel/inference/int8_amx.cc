// Matmuls of int8 weights and many rows with AMX: a group of columns goes through the tiles at once, its exact integers
// become floats while the next group is multiplied. Weights are read as they lie in memory (kernels.h, PackedInt8).
#include <immintrin.h>

#include "butterfly/kernel/inference/int8_amx.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

constexpr long kRowsOfTile = 16;
constexpr long kStepCols = 64;  // that a tile multiplies at once
constexpr long kStepBytes = kRowsOfTile * kStepCols;
constexpr long kStepsMax = 512;   // of all tiles of rows: 512 KiB, which fit the second-level cache
constexpr long kTilesAtOnce = 2;  // of rows, and panels: each tile that is loaded is used twice
constexpr long kProducts = kRowsOfTile * kPanel;
constexpr long kSumFloats = kTilesAtOnce * kTilesAtOnce * kProducts;

struct Vec {
  __m512 v;
  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
};

/// https://www.intel.com/content/www/us/en/docs/intrinsics-guide: the operand of LDTILECFG. Tiles 0 to 3 are products,
/// 4 and 5 activations, 6 and 7 weights; all are 16 rows of 64 bytes.
struct TileConfig {
  TileConfig() {
    for (int tile = 0; tile < 8; ++tile) {
      rows[tile] = kRowsOfTile;
      row_bytes[tile] = kStepCols;
    }
  }
  unsigned char palette = 1;
  unsigned char start_row = 0;
  unsigned char reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Columns that share a scale, in blocks of 32.
struct Group {
  long begin;
  long end;
  bool first;  // of its slice
  int adds;    // as SliceStep's, of the slice that ends with it; -1 where none does
  long steps() const { return (end - begin + 1) / 2; }
};

/// Calls visit(group) for all groups of a sum, in order.
template <class Visit>
inline __attribute__((always_inline)) void for_groups(const SliceSteps& steps, const Visit& visit) {
  constexpr long kGroupBlocks = kQuantGroup / 32;
  for (int i = 0; i < steps.count; ++i) {
    const SliceStep& slice = steps.steps[i];
    for (long begin = slice.begin / 32; begin < slice.end / 32; begin += kGroupBlocks) {
      const long end = min_of(begin + kGroupBlocks, slice.end / 32);
      visit(Group{begin, end, begin == slice.begin / 32, end == slice.end / 32 ? slice.adds : -1});
    }
  }
}

/// Activations of some tiles of rows, of the columns of one sum.
struct Rows {
  long first;  // the first row
  long last;   // behind the last
  long tiles;
  long steps;                                              // of a row
  long groups;                                             // likewise
  alignas(64) signed char quants[kStepsMax * kStepBytes];  // [tile][step][16 rows][64 columns]
  alignas(64) float scales[kStepsMax * kRowsOfTile];       // [tile][group][16 rows]
  alignas(64) int offsets[kStepsMax * kRowsOfTile];        // likewise: what weights + 128 give too much

  /// The last tile ends with the last row of all, and has rows of the one before.
  long row_of(long tile, long rows) const { return min_of(first + tile * kRowsOfTile, rows - kRowsOfTile); }
};

void pack_rows(const LinearArgs& a, const SliceSteps& steps, Rows& rows) {
  const long blocks = a.cols / 32;
  for (long tile = 0; tile < rows.tiles; ++tile) {
    const long row = rows.row_of(tile, a.rows);
    signed char* quants = rows.quants + tile * rows.steps * kStepBytes;
    long at = tile * rows.groups * kRowsOfTile;
    for_groups(steps, [&](const Group& group) {
      for (long m = 0; m < kRowsOfTile; ++m) {
        const signed char* from = a.xq + (row + m) * a.cols;
        int sum = 0;
        for (long block = group.begin; block < group.end; ++block) {
          const long place = (block - group.begin) / 2 * kStepBytes + m * kStepCols + (block - group.begin) % 2 * 32;
          __builtin_memcpy(quants + place, from + block * 32, 32);
          sum += sum_of(a.x_sums[(row + m) * blocks + block]);
        }
        if ((group.end - group.begin) % 2 == 1) {
          __builtin_memset(quants + (group.steps() - 1) * kStepBytes + m * kStepCols + 32, 0, 32);
        }
        rows.scales[at + m] = a.x_scales[(row + m) * blocks + group.begin];
        rows.offsets[at + m] = 128 * sum;
      }
      quants += group.steps() * kStepBytes;
      at += kRowsOfTile;
    });
  }
  asm volatile("" ::: "memory");  // tiles are loaded by statements of which the compiler does not know what they read
}

/// The integers of one group of two tiles of rows, or one, and two panels, or one: [tile][panel][16][16].
template <int kTiles, int kPanels>
inline __attribute__((always_inline)) void multiply_group(const signed char* x, long x_tile, const unsigned char* w,
                                                          long panel_stride, long steps, int* to) {
  _tile_zero(0);
  if constexpr (kPanels == 2) _tile_zero(1);
  if constexpr (kTiles == 2) _tile_zero(2);
  if constexpr (kTiles == 2 && kPanels == 2) _tile_zero(3);
  for (long step = 0; step < steps; ++step, x += kStepBytes, w += 2 * PackedInt8::kBlockBytes) {
    _tile_loadd(4, x, kStepCols);
    _tile_loadd(6, w, kStepCols);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, w + panel_stride, kStepCols);
      _tile_dpbsud(1, 4, 7);
    }
    if constexpr (kTiles == 2) {
      _tile_loadd(5, x + x_tile, kStepCols);
      _tile_dpbsud(2, 5, 6);
      if constexpr (kPanels == 2) _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, to, 64);
  if constexpr (kPanels == 2) _tile_stored(1, to + kProducts, 64);
  if constexpr (kTiles == 2) _tile_stored(2, to + kPanels * kProducts, 64);
  if constexpr (kTiles == 2 && kPanels == 2) _tile_stored(3, to + 3 * kProducts, 64);
}

/// Sums of tiles of outputs: [tile][16 rows][panel][16 outputs], as finish_tile() reads them. What is read and written
/// in turns lies at other places of a page each, or the processor would take the one for the other.
struct Sums {
  static constexpr long kApart = 4 * kPanel;
  static constexpr long kSum = kSumFloats + kApart;
  alignas(64) float waiting[kWaitingMax * kSum];  // of slices
  alignas(64) float begun[kSum];
  alignas(64) int products[2 * kSum];  // of this group and of the one before
};

/// What a group's products are added to: the sum that is begun, or, where its slice ends, the tree of slices.
struct GroupEnd {
  const unsigned char* w = nullptr;  // of the panels, which begin with the scales
  long panel_stride = 0;
  float* top = nullptr;  // where the slice's sum will wait, below those that it adds
  int adds = 0;
};

/// Adds a group's products to what is begun; where a slice ends, its sum joins the tree.
template <int kTiles, int kPanels, bool kEnds>
inline __attribute__((always_inline)) void add_group(const int* products, const Rows& rows, long tile, long number,
                                                     bool first, float* begun, const GroupEnd& end) {
  __m512 w_scales[kPanels];
  for (long p = 0; p < kPanels; ++p) w_scales[p] = _mm512_loadu_ps(end.w + p * end.panel_stride);
  for (long t = 0; t < kTiles; ++t) {
    const long at = ((tile + t) * rows.groups + number) * kRowsOfTile;
#pragma GCC unroll 4
    for (long m = 0; m < kRowsOfTile; ++m) {
      const __m512i offset = _mm512_set1_epi32(rows.offsets[at + m]);
      const __m512 scale = _mm512_set1_ps(rows.scales[at + m]);
#pragma GCC unroll 2
      for (long p = 0; p < kPanels; ++p) {
        const __m512i product = _mm512_load_si512(products + (t * kPanels + p) * kProducts + m * kPanel);
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_sub_epi32(product, offset));
        const long place = ((t * kRowsOfTile + m) * kPanels + p) * kPanel;
        const __m512 sum = _mm512_fmadd_ps(dot, scale, first ? _mm512_setzero_ps() : _mm512_load_ps(begun + place));
        if constexpr (kEnds) {
          __m512 of_slice = _mm512_mul_ps(sum, w_scales[p]);
          const float* waiting = end.top + place;
          for (int k = 0; k < end.adds; ++k) {
            waiting -= Sums::kSum;
            of_slice = _mm512_add_ps(_mm512_load_ps(waiting), of_slice);
          }
          _mm512_store_ps(end.top - end.adds * Sums::kSum + place, of_slice);
        } else {
          _mm512_store_ps(begun + place, sum);
        }
      }
    }
  }
}

template <int kTiles, int kPanels>
void multiply_tiles(const LinearArgs& a, const LinearSum& sum, const SliceSteps& steps, long panel, const Rows& rows,
                    long tile, Sums& sums) {
  const unsigned char* w = panel_of(a, panel);
  const signed char* x = rows.quants + tile * rows.steps * kStepBytes;
  const long x_tile = rows.steps * kStepBytes;
  float* top = sums.waiting;
  long number = 0;
  for (long t = tile; t < tile + kTiles; ++t) {
    const long row = rows.first + t * kRowsOfTile;
    prefetch_outputs(sum, row, static_cast<int>(min_of(kRowsOfTile, rows.last - row)), panel, kPanels);
  }
  Group before{};
  const auto add_before = [&] {
    const int* products = sums.products + (number - 1) % 2 * Sums::kSum;
    const GroupEnd end{.w = w, .panel_stride = a.panel_stride, .top = top, .adds = before.adds};
    if (before.adds < 0) {
      add_group<kTiles, kPanels, false>(products, rows, tile, number - 1, before.first, sums.begun, end);
    } else {
      add_group<kTiles, kPanels, true>(products, rows, tile, number - 1, before.first, sums.begun, end);
      top += (1 - before.adds) * Sums::kSum;
    }
  };
  for_groups(steps, [&](const Group& group) {
    multiply_group<kTiles, kPanels>(x, x_tile, w + PackedInt8::quants_at(group.begin), a.panel_stride, group.steps(),
                                    sums.products + number % 2 * Sums::kSum);
    asm volatile("" ::: "memory");  // as in pack_rows(), of what they write
    if (number > 0) add_before();
    x += group.steps() * kStepBytes;
    before = group;
    ++number;
  });
  add_before();
  for (long t = tile; t < tile + kTiles; ++t) {
    const long begin = rows.first + t * kRowsOfTile;
    const long skipped = begin - rows.row_of(t, a.rows);
    const long end = min_of(begin + kRowsOfTile, rows.last);
    finish_tile<Vec>(sum, a.out_rows, sums.waiting + ((t - tile) * kRowsOfTile + skipped) * kPanels * kPanel, begin,
                     static_cast<int>(end - begin), panel, kPanels);
  }
}

/// The weights of the panels that come next, where they fit the second-level cache beside the activations: a tile would
/// wait for them.
LinesAhead panels_ahead(const LinearArgs& a, long panel, long turns) {
  constexpr long kBytesMax = 256 * 1024;
  const long bytes = min_of(kTilesAtOnce, a.panel_end - panel) * a.panel_stride;
  return {panel_of(a, panel), bytes <= kBytesMax ? bytes : 0, turns};
}

/// One or two panels of all rows that are packed.
template <int kPanels>
void multiply_panels(const LinearArgs& a, const LinearSum& sum, const SliceSteps& steps, long panel, const Rows& rows,
                     Sums& sums) {
  LinesAhead ahead = panels_ahead(a, panel + kPanels, (rows.tiles + 1) / kTilesAtOnce);
  long tile = 0;
  for (; tile + kTilesAtOnce <= rows.tiles; tile += kTilesAtOnce) {
    ahead.ask();
    multiply_tiles<kTilesAtOnce, kPanels>(a, sum, steps, panel, rows, tile, sums);
  }
  ahead.ask();
  if (tile < rows.tiles) multiply_tiles<1, kPanels>(a, sum, steps, panel, rows, tile, sums);
}

/// Steps and groups of a row.
struct Counts {
  explicit Counts(const SliceSteps& slices) {
    for_groups(slices, [&](const Group& group) {
      steps += group.steps();
      ++groups;
    });
  }
  long steps = 0;
  long groups = 0;
};

void multiply_sum(const LinearArgs& a, const LinearSum& sum, const SliceSteps& steps, Rows& rows, Sums& sums) {
  const Counts counts(steps);
  rows.steps = counts.steps;
  rows.groups = counts.groups;
  for (rows.first = 0; rows.first < a.rows; rows.first = rows.last) {
    rows.last = min_of(rows.first + kStepsMax / rows.steps * kRowsOfTile, a.rows);
    rows.tiles = (rows.last - rows.first + kRowsOfTile - 1) / kRowsOfTile;
    pack_rows(a, steps, rows);
    long panel = a.panel_begin;
    for (; panel + kTilesAtOnce <= a.panel_end; panel += kTilesAtOnce) {
      multiply_panels<kTilesAtOnce>(a, sum, steps, panel, rows, sums);
    }
    if (panel < a.panel_end) multiply_panels<1>(a, sum, steps, panel, rows, sums);
  }
}

}  // namespace

bool linear_amx_int8(const LinearArgs& a) {
  const SumSteps steps(a);
  bool fits = a.rows >= kRowsOfTile && a.panel_begin < a.panel_end;
  for (int i = 0; i < a.sum_count; ++i) fits = fits && Counts(steps.of[i]).steps <= kStepsMax;
  if (!fits) return false;
  Rows rows;
  Sums sums;
  const TileConfig config;
  // The compiler believes that the next statement reads no more than the first bytes.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  for (int i = 0; i < a.sum_count; ++i) multiply_sum(a, a.sums[i], steps.of[i], rows, sums);
  _tile_release();
  return true;
}

}  // namespace butterfly
