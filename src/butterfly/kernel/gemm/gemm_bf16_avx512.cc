// bf16 matmuls with AVX-512's dot products of pairs: 14 rows x 32 columns of C. Subnormals count as zeros there.
#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_panels_inl.h"
#include "butterfly/kernel/gemm/transpose_avx512_inl.h"

namespace butterfly {
namespace {

/// Of sums, or of slots that hold a pair each.
struct Pairs {
  using Mask = __mmask16;
  static constexpr long kFloats = 16;
  static constexpr long kDepth = 2;
  __m512 v;

  static Mask first(long n) {
    return n >= kFloats ? static_cast<Mask>(0xffff) : static_cast<Mask>((1u << (n > 0 ? n : 0)) - 1);
  }
  static Pairs zero() { return {_mm512_setzero_ps()}; }
  static Pairs set1(float pair) { return {_mm512_set1_ps(pair)}; }
  static Pairs load(const float* aligned) { return {_mm512_load_ps(aligned)}; }
  static Pairs load(Mask there, const float* from) { return {_mm512_maskz_loadu_ps(there, from)}; }
  static Pairs slots_of_lane(const Bf16* from, long depth) {
    const __mmask32 there = depth >= 2 * kFloats ? ~__mmask32{0} : (__mmask32{1} << (depth > 0 ? depth : 0)) - 1;
    return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, from))};
  }
  static Pairs slot_of_lanes(const LanesOfRow<Bf16>& row) {
    const Mask lanes = first(row.lanes);
    const __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, row.from));
    const Mask in_next = row.depth > 1 ? lanes : Mask{0};
    const __m512i odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in_next, row.from + row.stride));
    return {_mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)))};
  }
  static void store(Mask wanted, float* to, Pairs x) { _mm512_mask_storeu_ps(to, wanted, x.v); }
  static Pairs add(Pairs a, Pairs b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Pairs multiply_add(Pairs a, Pairs b, Pairs sum) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
  }
  static void transpose(Pairs (&rows)[kFloats]) {
    __m512 square[kFloats];
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) square[i] = rows[i].v;
    transpose_square(square);
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) rows[i].v = square[i];
  }
};

constexpr long kRows = 14;
constexpr long kDepthAtOnce = 512;

}  // namespace

constinit const GemmKernels kAvx512DotGemmKernels = kernels_of<Pairs, Bf16, kRows>("avx512_bf16", kDepthAtOnce);

}  // namespace butterfly
