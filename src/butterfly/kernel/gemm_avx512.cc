// fp32 products with AVX-512: 14 rows x 32 columns of C stay in registers while both panels are read once.
#include <immintrin.h>

#include "butterfly/kernel/gemm_kernels.h"
#include "butterfly/kernel/transpose_avx512_inl.h"

namespace butterfly {
namespace {

constexpr long kLanes = 16;
constexpr long kRows = 14;  // 28 sums, 2 operands and 1 broadcast of 32 registers
constexpr long kCols = 32;

__mmask16 first(long n) {
  return n >= kLanes ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1);
}

/// Stored rows of a lane each -> [depth][width], 16 lanes and 16 elements at a time.
template <long kWidth>
void pack_lanes_apart(const float* from, const PanelSource& s, float* panel) {
  for (long lane = 0; lane < kWidth; lane += kLanes) {
    const __mmask16 wanted = first(kWidth - lane);
    for (long k = 0; k < s.depth; k += kLanes) {
      const __mmask16 there = first(s.depth - k);
      __m512 square[16];
#pragma GCC unroll 16
      for (long i = 0; i < kLanes; ++i) {
        const bool is_lane = lane + i < s.lanes;
        square[i] = is_lane ? _mm512_maskz_loadu_ps(there, from + (lane + i) * s.stride + k) : _mm512_setzero_ps();
      }
      transpose_square(square);
      float* to = panel + k * kWidth + lane;
      if (s.depth - k >= kLanes) {
#pragma GCC unroll 16
        for (long i = 0; i < kLanes; ++i) _mm512_mask_storeu_ps(to + i * kWidth, wanted, square[i]);
      } else {
        for (long i = 0; i < s.depth - k; ++i) _mm512_mask_storeu_ps(to + i * kWidth, wanted, square[i]);
      }
    }
  }
}

template <long kWidth>
void pack(const PanelSource& s, void* to) {
  const auto* from = static_cast<const float*>(s.from);
  auto* panel = static_cast<float*>(to);
  if (!s.lanes_together) return pack_lanes_apart<kWidth>(from, s, panel);
  for (long k = 0; k < s.depth; ++k) {
    for (long lane = 0; lane < kWidth; lane += kLanes) {
      const __m512 x = _mm512_maskz_loadu_ps(first(s.lanes - lane), from + k * s.stride + lane);
      _mm512_mask_storeu_ps(panel + k * kWidth + lane, first(kWidth - lane), x);
    }
  }
}

/// C[kHeight, n] from one panel of each. `next`: what of C comes next.
template <int kHeight>
void multiply_panels(const PanelProduct& p, const float* a, float* c, const float* next) {
  const auto* b = static_cast<const float*>(p.b);
  __m512 sum[kHeight][2];
#pragma GCC unroll 14
  for (int i = 0; i < kHeight; ++i) {
    sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    _mm_prefetch(reinterpret_cast<const char*>(next + i * p.c_stride), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(next + i * p.c_stride + kLanes), _MM_HINT_T1);
  }
  for (long k = 0; k < p.depth; ++k) {
    const __m512 left = _mm512_load_ps(b + k * kCols);
    const __m512 right = _mm512_load_ps(b + k * kCols + kLanes);
#pragma GCC unroll 14
    for (int i = 0; i < kHeight; ++i) {
      const __m512 x = _mm512_set1_ps(a[k * kRows + i]);
      sum[i][0] = _mm512_fmadd_ps(x, left, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, right, sum[i][1]);
    }
  }
  const __mmask16 in_left = first(p.n);
  const __mmask16 in_right = first(p.n - kLanes);
  if (p.bias != nullptr) {
    const __m512 left = _mm512_maskz_loadu_ps(in_left, p.bias);
    const __m512 right = _mm512_maskz_loadu_ps(in_right, p.bias + kLanes);
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
      sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_maskz_loadu_ps(in_right, c + i * p.c_stride + kLanes));
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < kHeight; ++i) {
    _mm512_mask_storeu_ps(c + i * p.c_stride, in_left, sum[i][0]);
    _mm512_mask_storeu_ps(c + i * p.c_stride + kLanes, in_right, sum[i][1]);
  }
}

/// The last panel of A, of fewer rows than others.
template <int kHeight = kRows - 1>
void multiply_last(const PanelProduct& p, const float* a, float* c, long rows) {
  if constexpr (kHeight > 0) {
    if (rows == kHeight) return multiply_panels<kHeight>(p, a, c, c);
    multiply_last<kHeight - 1>(p, a, c, rows);
  }
}

void multiply(const PanelProduct& p) {
  const char* a = static_cast<const char*>(p.a);
  long row = 0;
  for (; row + kRows <= p.m; row += kRows, a += p.a_panel) {
    float* c = p.c + row * p.c_stride;
    // Beyond the last rows lies another thread's part, or nothing.
    const float* next = row + 2 * kRows <= p.m ? c + kRows * p.c_stride : c;
    multiply_panels<kRows>(p, reinterpret_cast<const float*>(a), c, next);
  }
  multiply_last(p, reinterpret_cast<const float*>(a), p.c + row * p.c_stride, p.m - row);
}

}  // namespace

constinit const GemmKernels kAvx512GemmKernels = {"avx512", 4, kRows, kCols, 1, pack<kRows>, pack<kCols>, multiply};

}  // namespace butterfly
