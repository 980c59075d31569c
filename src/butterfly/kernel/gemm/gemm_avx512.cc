// fp32 matmuls with AVX-512: 14 rows x 32 columns of C stay in registers while both panels are read once. bf16 operands
// become fp32 in the panels: products of them are exact there, and as fast as any.
#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_ahead_inl.h"
#include "butterfly/kernel/gemm/gemm_kernels.h"
#include "butterfly/kernel/gemm/transpose_avx512_inl.h"

namespace butterfly {
namespace {

using Bf16 = unsigned short;
constexpr long kVectorFloats = 16;
constexpr long kRows = 14;  // 28 sums, 2 operands and 1 broadcast of 32 registers
constexpr long kCols = 32;

__mmask16 first(long n) {
  return n >= kVectorFloats ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1);
}

__m512 load(__mmask16 there, const float* from) {
  return _mm512_maskz_loadu_ps(there, from);
}
__m512 load(__mmask16 there, const Bf16* from) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/// Lanes [lane, lane + width) of stored rows of a lane each -> [depth][width], 16 lanes and 16 elements at a time.
template <class Element, long kWidth>
void pack_lanes_apart(const PanelSource& s, long lane, float* panel) {
  const auto* from = static_cast<const Element*>(s.from) + lane * s.stride;
  const long lanes = s.lanes - lane;
  for (long first_lane = 0; first_lane < kWidth; first_lane += kVectorFloats) {
    const __mmask16 wanted = first(kWidth - first_lane);
    for (long k = 0; k < s.depth; k += kVectorFloats) {
      const __mmask16 there = first(s.depth - k);
      __m512 square[16];
#pragma GCC unroll 16
      for (long i = 0; i < kVectorFloats; ++i) {
        const Element* row = from + (first_lane + i) * s.stride + k;
        square[i] = first_lane + i < lanes ? load(there, row) : _mm512_setzero_ps();
      }
      transpose_square(square);
      float* to = panel + k * kWidth + first_lane;
      if (s.depth - k >= kVectorFloats) {
#pragma GCC unroll 16
        for (long i = 0; i < kVectorFloats; ++i) _mm512_mask_storeu_ps(to + i * kWidth, wanted, square[i]);
      } else {
        for (long i = 0; i < s.depth - k; ++i) _mm512_mask_storeu_ps(to + i * kWidth, wanted, square[i]);
      }
    }
  }
}

/// Stored rows of an element of each lane -> panels of [depth][width]: some rows at a time for all panels, as few rows
/// are a stream to memory each, and many, at distances of a power of two, one set of the cache.
template <class Element, long kWidth>
void pack_lanes_together(const PanelSource& s, long panel_floats, float* panels) {
  constexpr long kRowsAtOnce = 8;
  const auto* from = static_cast<const Element*>(s.from);
  for (long k = 0; k < s.depth; k += kRowsAtOnce) {
    const long rows = s.depth - k < kRowsAtOnce ? s.depth - k : kRowsAtOnce;
    for (long lane = 0; lane < s.lanes; lane += kWidth) {
      const Element* row = from + k * s.stride + lane;
      float* to = panels + lane / kWidth * panel_floats + k * kWidth;
      for (long i = 0; i < rows; ++i, row += s.stride, to += kWidth) {
#pragma GCC unroll 2
        for (long part = 0; part < kWidth; part += kVectorFloats) {
          const __m512 x = load(first(s.lanes - lane - part), row + part);
          prefetch(row + part + kRowsAtOnce * s.stride);
          _mm512_mask_storeu_ps(to + part, first(kWidth - part), x);
        }
      }
    }
  }
}

template <class Element, long kWidth>
void pack(const PanelSource& s, long panel_stride, void* to) {
  auto* panels = static_cast<float*>(to);
  const long panel_floats = panel_stride / static_cast<long>(sizeof(float));
  if (s.lanes_together) return pack_lanes_together<Element, kWidth>(s, panel_floats, panels);
  for (long lane = 0; lane < s.lanes; lane += kWidth) {
    pack_lanes_apart<Element, kWidth>(s, lane, panels + lane / kWidth * panel_floats);
  }
}

/// C[kHeight, n] from one panel of each.
template <int kHeight>
void multiply_panels(const PanelMatmul& p, const float* a, float* c, LinesAhead& ahead) {
  constexpr long kStep = 16;    // of the depth: between fetches of C and of what lies ahead
  constexpr long kAAhead = 16;  // of the depth: panels are larger than the first cache
  constexpr long kBAhead = 8;
  const auto* b = static_cast<const float*>(p.b);
  __m512 sum[kHeight][2];
#pragma GCC unroll 14
  for (int i = 0; i < kHeight; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (long begin = 0; begin < p.depth; begin += kStep) {
    const long end = begin + kStep < p.depth ? begin + kStep : p.depth;
    // A line or two at a time: all of C's at once would keep what the sums wait for from the cache.
    if (const long row = begin / kStep; row < kHeight) {
      prefetch(c + row * p.c_stride);
      prefetch(c + row * p.c_stride + kVectorFloats);
    }
    ahead.fetch();
    for (long k = begin; k < end; ++k) {
      const __m512 left = _mm512_load_ps(b + k * kCols);
      const __m512 right = _mm512_load_ps(b + k * kCols + kVectorFloats);
      _mm_prefetch(reinterpret_cast<const char*>(a + (k + kAAhead) * kRows), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + (k + kBAhead) * kCols), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b + (k + kBAhead) * kCols + kVectorFloats), _MM_HINT_T0);
#pragma GCC unroll 14
      for (int i = 0; i < kHeight; ++i) {
        const __m512 x = _mm512_set1_ps(a[k * kRows + i]);
        sum[i][0] = _mm512_fmadd_ps(x, left, sum[i][0]);
        sum[i][1] = _mm512_fmadd_ps(x, right, sum[i][1]);
      }
    }
  }
  const __mmask16 in_left = first(p.n);
  const __mmask16 in_right = first(p.n - kVectorFloats);
  if (p.bias != nullptr) {
    const __m512 left = _mm512_maskz_loadu_ps(in_left, p.bias);
    const __m512 right = _mm512_maskz_loadu_ps(in_right, p.bias + kVectorFloats);
#pragma GCC unroll 14
    for (int i = 0; i < kHeight; ++i) {
      sum[i][0] = _mm512_add_ps(sum[i][0], left);
      sum[i][1] = _mm512_add_ps(sum[i][1], right);
    }
  }
  if (p.add) {
#pragma GCC unroll 14
    for (int i = 0; i < kHeight; ++i) {
      sum[i][0] = _mm512_add_ps(sum[i][0], _mm512_maskz_loadu_ps(in_left, c + i * p.c_stride));
      sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_maskz_loadu_ps(in_right, c + i * p.c_stride + kVectorFloats));
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < kHeight; ++i) {
    _mm512_mask_storeu_ps(c + i * p.c_stride, in_left, sum[i][0]);
    _mm512_mask_storeu_ps(c + i * p.c_stride + kVectorFloats, in_right, sum[i][1]);
  }
}

/// The last panel of A, of fewer rows than others.
template <int kHeight = kRows - 1>
void multiply_last(const PanelMatmul& p, const float* a, float* c, long rows, LinesAhead& ahead) {
  if constexpr (kHeight > 0) {
    if (rows == kHeight) return multiply_panels<kHeight>(p, a, c, ahead);
    multiply_last<kHeight - 1>(p, a, c, rows, ahead);
  }
}

void multiply(const PanelMatmul& p) {
  const char* a = static_cast<const char*>(p.a);
  LinesAhead ahead(p.ahead, (p.m + kRows - 1) / kRows * ((p.depth + 15) / 16));
  long row = 0;
  for (; row + kRows <= p.m; row += kRows, a += p.a_panel) {
    multiply_panels<kRows>(p, reinterpret_cast<const float*>(a), p.c + row * p.c_stride, ahead);
  }
  multiply_last(p, reinterpret_cast<const float*>(a), p.c + row * p.c_stride, p.m - row, ahead);
}

}  // namespace

constinit const GemmKernels kAvx512GemmKernels = {"avx512",           4,       4, kRows, kCols, 1, pack<float, kRows>,
                                                  pack<float, kCols>, multiply};
constinit const GemmKernels kAvx512Bf16GemmKernels = {"avx512",          2,       4, kRows, kCols, 1, pack<Bf16, kRows>,
                                                      pack<Bf16, kCols>, multiply};

}  // namespace butterfly
