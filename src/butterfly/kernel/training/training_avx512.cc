// Training kernels with AVX-512 (F, BW, DQ, VL): 16 floats are one register.
#include <immintrin.h>

#include "butterfly/kernel/gemm/transpose_avx512_inl.h"
#include "butterfly/kernel/training/training_attention_inl.h"

namespace butterfly {
namespace {

struct Vec {
  static constexpr int kVectorFloats = 16;
  static constexpr int kTileVectors = 4;  // 6 x 4 sums, 4 operands and 1 broadcast of 32 registers
  __m512 v;

  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static void prefetch(const float* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
  static Vec load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  static void store_first(float* p, int n, Vec x) { _mm512_mask_storeu_ps(p, first(n), x.v); }
  static Vec first_of(Vec x, int n, Vec other) { return {_mm512_mask_mov_ps(other.v, first(n), x.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec fnma(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float largest() const { return _mm512_reduce_max_ps(v); }
  static Vec add_exponent(Vec p, Vec t) {
    return {_mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(t.v), 23)))};
  }
  static Vec zero_where_below(Vec value, Vec x, Vec limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
  }
  static Vec reciprocal_guess(Vec d) {
    return {_mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(kReciprocalMagic), _mm512_castps_si512(d.v)))};
  }
  static Vec load_bf16(const unsigned short* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static void store_bf16(unsigned short* p, Vec x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i all = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16)));
  }

  /// kVectorFloats rows of kVectorFloats floats into as many columns.
  static void transpose(const float* from, long stride, float* to, long to_stride) {
    __m512 square[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) square[i] = _mm512_loadu_ps(from + i * stride);
    transpose_square(square);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * to_stride, square[i]);
  }

  /// Sums of squares in double, one per lane.
  struct Squares {
    __m512d low = _mm512_setzero_pd();
    __m512d high = _mm512_setzero_pd();
    void add(Vec x) {
      const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
      const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
      low = _mm512_fmadd_pd(a, a, low);
      high = _mm512_fmadd_pd(b, b, high);
    }
    double sum() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
  };

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
};

}  // namespace

constinit const TrainingKernels kAvx512TrainingKernels = training_table<Vec>("avx512");

}  // namespace butterfly
