// bf16 matmuls with AMX: 32 rows x 32 columns of C stay in four tile registers while both panels are read once. Of 32
// elements of depth, a panel of A holds two tiles of [16 rows][32 elements], one of B two of [16 pairs][16 columns][2].
#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_ahead_inl.h"
#include "butterfly/kernel/gemm/gemm_kernels.h"
#include "butterfly/kernel/gemm/transpose_avx512_inl.h"

namespace butterfly {
namespace {

using Bf16 = unsigned short;
constexpr long kVectorFloats = 16;  // rows of a tile
constexpr long kTilePanel = 32;     // lanes of a panel: two tiles
constexpr long kDepth = 32;         // elements of a row of a tile
constexpr long kTileBytes = 1024;   // 16 rows of 64 bytes

__mmask32 first(long n) {
  return n >= kDepth ? 0xffffffffu : (1u << (n > 0 ? n : 0)) - 1;
}

/// Tile `tile` of block `block` of a panel.
Bf16* tile_of(void* panel, long block, long tile) {
  return reinterpret_cast<Bf16*>(static_cast<char*>(panel) + (2 * block + tile) * kTileBytes);
}

const Bf16* element(const PanelSource& s, long row, long column) {
  return static_cast<const Bf16*>(s.from) + row * s.stride + column;
}

__m512i load_row(const PanelSource& s, long row, long column, long row_end, long column_end) {
  if (row >= row_end) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(first(column_end - column), element(s, row, column));
}

/// 16 lanes of 32 elements whose stored rows are lanes: as they are, or pairs of elements beside those of other lanes.
template <bool kPairs>
void pack_lanes_apart(const PanelSource& s, long lane, long k, Bf16* tile) {
  __m512 square[16];
#pragma GCC unroll 16
  for (long i = 0; i < kVectorFloats; ++i) square[i] = _mm512_castsi512_ps(load_row(s, lane + i, k, s.lanes, s.depth));
  if (kPairs) transpose_square(square);
#pragma GCC unroll 16
  for (long i = 0; i < kVectorFloats; ++i) _mm512_store_ps(reinterpret_cast<float*>(tile + i * kDepth), square[i]);
}

/// The same for 32 lanes, two tiles, whose stored rows hold one element of each.
template <bool kPairs>
void pack_lanes_together(const PanelSource& s, long lane, long k, Bf16* tiles) {
  // Unpacking alternates the rows within each 128 bits: their lower halves, and their upper ones.
  const __m512i low_order = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i high_order = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  constexpr long kAhead = 4 * kTilePanel;  // lanes
  // Behind the last lanes come the first ones of the next rows.
  const Bf16* next = lane + kAhead < s.lanes ? element(s, k, lane + kAhead) : element(s, k + kDepth, lane % kAhead);
  __m512 left[16];
  __m512 right[16];
#pragma GCC unroll 16
  for (long i = 0; i < kVectorFloats; ++i) {
    const __m512i even = load_row(s, k + 2 * i, lane, s.depth, s.lanes);
    const __m512i odd = load_row(s, k + 2 * i + 1, lane, s.depth, s.lanes);
    prefetch(next + 2 * i * s.stride);
    prefetch(next + (2 * i + 1) * s.stride);
    const __m512i low = _mm512_unpacklo_epi16(even, odd);
    const __m512i high = _mm512_unpackhi_epi16(even, odd);
    left[i] = _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, low_order, high));
    right[i] = _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, high_order, high));
  }
  if (!kPairs) {
    transpose_square(left);
    transpose_square(right);
  }
#pragma GCC unroll 16
  for (long i = 0; i < kVectorFloats; ++i) {
    _mm512_store_ps(reinterpret_cast<float*>(tiles + i * kDepth), left[i]);
    _mm512_store_ps(reinterpret_cast<float*>(tiles + (kVectorFloats + i) * kDepth), right[i]);
  }
}

/// Along the stored rows, so that memory is read as it lies.
template <bool kPairs>
void pack(const PanelSource& s, long panel_stride, void* to) {
  auto* panels = static_cast<char*>(to);
  if (s.lanes_together) {
    for (long k = 0; k < s.depth; k += kDepth) {
      for (long lane = 0; lane < s.lanes; lane += kTilePanel) {
        pack_lanes_together<kPairs>(s, lane, k, tile_of(panels + lane / kTilePanel * panel_stride, k / kDepth, 0));
      }
    }
    return;
  }
  for (long lane = 0; lane < s.lanes; lane += kTilePanel) {
    void* panel = panels + lane / kTilePanel * panel_stride;
    for (long k = 0; k < s.depth; k += kDepth) {
      pack_lanes_apart<kPairs>(s, lane, k, tile_of(panel, k / kDepth, 0));
      pack_lanes_apart<kPairs>(s, lane + kVectorFloats, k, tile_of(panel, k / kDepth, 1));
    }
  }
}

/// https://www.intel.com/content/www/us/en/docs/intrinsics-guide: the operand of LDTILECFG.
struct TileConfig {
  unsigned char palette = 1;
  unsigned char start_row = 0;
  unsigned char reserved[14] = {};
  unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// Where a square of C goes.
struct Square {
  float* c;
  long stride;
  bool add;
  const float* next;  // what of C comes next
  LinesAhead* ahead;
};

/// C[32, 32] from one panel of each.
void multiply_panels(const char* a, const char* b, long depth, const Square& to) {
  const long bytes = to.stride * static_cast<long>(sizeof(float));
  float* lower = to.c + kVectorFloats * to.stride;
  if (to.add) {
    _tile_loadd(0, to.c, bytes);
    _tile_loadd(1, to.c + kVectorFloats, bytes);
    _tile_loadd(2, lower, bytes);
    _tile_loadd(3, lower + kVectorFloats, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (long k = 0; k < depth; k += kDepth) {
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTileBytes, 64);
    _tile_loadd(5, a + kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    a += 2 * kTileBytes;
    b += 2 * kTileBytes;
    to.ahead->fetch();
    if (to.next != nullptr && k < kTilePanel * kDepth / 2) {
      // Two rows at a time, as the memory takes as long as the matmuls.
      const float* rows = to.next + k / (kDepth / 2) * to.stride;
      prefetch(rows);
      prefetch(rows + kVectorFloats);
      prefetch(rows + to.stride);
      prefetch(rows + to.stride + kVectorFloats);
    }
  }
  _tile_stored(0, to.c, bytes);
  _tile_stored(1, to.c + kVectorFloats, bytes);
  _tile_stored(2, lower, bytes);
  _tile_stored(3, lower + kVectorFloats, bytes);
}

void add_bias(const float* bias, long rows, long cols, float* c, long stride) {
  for (long i = 0; i < rows; ++i) {
    for (long j = 0; j < cols; ++j) c[i * stride + j] += bias[j];
  }
}

/// Where less than a whole panel of rows or columns is left: computed aside, then copied.
void multiply_edge(const PanelMatmul& p, const char* a, float* c, long rows, LinesAhead& lines) {
  alignas(64) float aside[kTilePanel * kTilePanel] = {};
  for (long i = 0; p.add && i < rows; ++i) {
    for (long j = 0; j < p.n; ++j) aside[i * kTilePanel + j] = c[i * p.c_stride + j];
  }
  multiply_panels(a, static_cast<const char*>(p.b), p.depth, {aside, kTilePanel, p.add, nullptr, &lines});
  if (p.bias != nullptr) add_bias(p.bias, rows, p.n, aside, kTilePanel);
  for (long i = 0; i < rows; ++i) {
    for (long j = 0; j < p.n; ++j) c[i * p.c_stride + j] = aside[i * kTilePanel + j];
  }
}

/// A whole square that goes past the caches: c is not read before it is written.
void multiply_streamed(const PanelMatmul& p, const char* a, float* c, LinesAhead& lines) {
  alignas(64) float aside[kTilePanel * kTilePanel];
  multiply_panels(a, static_cast<const char*>(p.b), p.depth, {aside, kTilePanel, false, nullptr, &lines});
  if (p.bias != nullptr) add_bias(p.bias, kTilePanel, kTilePanel, aside, kTilePanel);
  for (long i = 0; i < kTilePanel; ++i) {
    _mm512_stream_ps(c + i * p.c_stride, _mm512_load_ps(aside + i * kTilePanel));
    _mm512_stream_ps(c + i * p.c_stride + kVectorFloats, _mm512_load_ps(aside + i * kTilePanel + kVectorFloats));
  }
}

void multiply(const PanelMatmul& p) {
  const TileConfig config;
  _tile_loadconfig(&config);
  const bool whole_lines = reinterpret_cast<unsigned long>(p.c) % 64 == 0 && p.c_stride % kVectorFloats == 0;
  const bool stream = p.stream && !p.add && whole_lines;
  const char* a = static_cast<const char*>(p.a);
  LinesAhead lines(p.ahead, (p.m + kTilePanel - 1) / kTilePanel * (p.depth / kDepth));
  for (long row = 0; row < p.m; row += kTilePanel, a += p.a_panel) {
    const long rows = p.m - row < kTilePanel ? p.m - row : kTilePanel;
    float* c = p.c + row * p.c_stride;
    if (rows < kTilePanel || p.n < kTilePanel) {
      multiply_edge(p, a, c, rows, lines);
    } else if (stream) {
      multiply_streamed(p, a, c, lines);
    } else {
      // Beyond the last rows lies another thread's part, or nothing.
      const float* next = row + 2 * kTilePanel <= p.m ? c + kTilePanel * p.c_stride : nullptr;
      multiply_panels(a, static_cast<const char*>(p.b), p.depth, {c, p.c_stride, p.add, next, &lines});
      if (p.bias != nullptr) add_bias(p.bias, rows, p.n, c, p.c_stride);
    }
  }
  _tile_release();
  if (stream) _mm_sfence();
}

}  // namespace

constinit const GemmKernels kAmxGemmKernels = {.name = "amx",
                                               .source_bytes = sizeof(Bf16),
                                               .panel_bytes = sizeof(Bf16),
                                               .rows = kTilePanel,
                                               .cols = kTilePanel,
                                               .depth = 512,
                                               .depth_step = kDepth,
                                               .pack_rows = pack<false>,
                                               .pack_cols = pack<true>,
                                               .multiply = multiply};

}  // namespace butterfly
