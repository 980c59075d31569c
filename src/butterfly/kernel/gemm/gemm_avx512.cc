// fp32 matmuls with AVX-512: 14 rows x 32 columns of C, for 28 sums, 2 operands and 1 broadcast of 32 registers.
#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_panels_inl.h"
#include "butterfly/kernel/gemm/transpose_avx512_inl.h"

namespace butterfly {
namespace {

struct Floats {
  using Mask = __mmask16;
  static constexpr long kFloats = 16;
  static constexpr long kDepth = 1;
  __m512 v;

  static Mask first(long n) {
    return n >= kFloats ? static_cast<Mask>(0xffff) : static_cast<Mask>((1u << (n > 0 ? n : 0)) - 1);
  }
  static Floats zero() { return {_mm512_setzero_ps()}; }
  static Floats set1(float x) { return {_mm512_set1_ps(x)}; }
  static Floats load(const float* aligned) { return {_mm512_load_ps(aligned)}; }
  static Floats load(Mask there, const float* from) { return {_mm512_maskz_loadu_ps(there, from)}; }
  static Floats slots_of_lane(const float* from, long depth) { return load(first(depth), from); }
  static Floats slots_of_lane(const Bf16* from, long depth) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(depth), from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  template <class Element>
  static Floats slot_of_lanes(const LanesOfRow<Element>& row) {
    return slots_of_lane(row.from, row.lanes);
  }
  static void store(Mask wanted, float* to, Floats x) { _mm512_mask_storeu_ps(to, wanted, x.v); }
  static Floats add(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Floats multiply_add(Floats a, Floats b, Floats sum) { return {_mm512_fmadd_ps(a.v, b.v, sum.v)}; }
  static void transpose(Floats (&rows)[kFloats]) {
    __m512 square[kFloats];
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) square[i] = rows[i].v;
    transpose_square(square);
#pragma GCC unroll 16
    for (int i = 0; i < kFloats; ++i) rows[i].v = square[i];
  }
};

constexpr long kRows = 14;
// A panel of B, 64 KiB, stays in the second cache beside a tile's part of A.
constexpr long kDepthAtOnce = 512;

}  // namespace

constinit const GemmKernels kAvx512GemmKernels = kernels_of<Floats, float, kRows>("avx512", kDepthAtOnce);
constinit const GemmKernels kAvx512Bf16GemmKernels = kernels_of<Floats, Bf16, kRows>("avx512", kDepthAtOnce);

}  // namespace butterfly
