// fp32 matmuls with AVX2 and FMA: 6 rows x 16 columns of C, for 12 sums, 2 operands and 1 broadcast of 16 registers.
#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_panels_inl.h"

namespace butterfly {
namespace {

struct Floats {
  struct Mask {
    __m256i lanes;
    int count;
  };
  static constexpr long kFloats = 8;
  static constexpr long kDepth = 1;
  __m256 v;

  static Mask first(long n) {
    const int count = static_cast<int>(n >= kFloats ? kFloats : n > 0 ? n : 0);
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm256_cmpgt_epi32(_mm256_set1_epi32(count), numbers), count};
  }
  static Floats zero() { return {_mm256_setzero_ps()}; }
  static Floats set1(float x) { return {_mm256_set1_ps(x)}; }
  static Floats load(const float* aligned) { return {_mm256_load_ps(aligned)}; }
  static Floats load(Mask there, const float* from) {
    return {there.count == kFloats ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, there.lanes)};
  }
  static Floats slots_of_lane(const float* from, long depth) { return load(first(depth), from); }
  static Floats slots_of_lane(const Bf16* from, long depth) {
    __m128i halves = _mm_setzero_si128();
    if (depth >= kFloats) {
      halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    } else if (depth > 0) {
      __builtin_memcpy(&halves, from, static_cast<unsigned long>(depth) * sizeof(Bf16));
    }
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
  }
  template <class Element>
  static Floats slot_of_lanes(const LanesOfRow<Element>& row) {
    return slots_of_lane(row.from, row.lanes);
  }
  static void store(Mask wanted, float* to, Floats x) {
    if (wanted.count == kFloats) {
      _mm256_storeu_ps(to, x.v);
    } else {
      _mm256_maskstore_ps(to, wanted.lanes, x.v);
    }
  }
  static Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
  static Floats multiply_add(Floats a, Floats b, Floats sum) { return {_mm256_fmadd_ps(a.v, b.v, sum.v)}; }
  /// Row i becomes element i of each.
  static void transpose(Floats (&rows)[kFloats]) {
    __m256 pairs[kFloats];
#pragma GCC unroll 4
    for (int i = 0; i < kFloats; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    __m256 fours[kFloats];
#pragma GCC unroll 2
    for (int i = 0; i < kFloats; i += 4) {
      fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      rows[i].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
      rows[i + 4].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
  }
};

constexpr long kRows = 6;
// A panel of B takes half of a first cache of 32 KiB.
constexpr long kDepthAtOnce = 256;

}  // namespace

constinit const GemmKernels kAvx2GemmKernels = kernels_of<Floats, float, kRows>("avx2", kDepthAtOnce);
constinit const GemmKernels kAvx2Bf16GemmKernels = kernels_of<Floats, Bf16, kRows>("avx2", kDepthAtOnce);

}  // namespace butterfly
