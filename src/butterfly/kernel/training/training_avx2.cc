// Training kernels with AVX2 and FMA: 8 floats are one register.
#include <immintrin.h>

#include "butterfly/kernel/training/training_attention_inl.h"

namespace butterfly {
namespace {

struct Vec {
  static constexpr int kVectorFloats = 8;
  static constexpr int kTileVectors = 2;  // 6 x 2 sums, 2 operands and 1 broadcast of 16 registers
  __m256 v;

  static Vec set1(float x) { return {_mm256_set1_ps(x)}; }
  static void prefetch(const float* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x.v); }
  static Vec load_first(const float* p, int n) { return {_mm256_maskload_ps(p, first(n))}; }
  static void store_first(float* p, int n, Vec x) { _mm256_maskstore_ps(p, first(n), x.v); }
  static Vec first_of(Vec x, int n, Vec other) {
    return {_mm256_blendv_ps(other.v, x.v, _mm256_castsi256_ps(first(n)))};
  }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec fnma(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
  static Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  static Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  static Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
  float sum() const {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  float largest() const {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  static Vec add_exponent(Vec p, Vec t) {
    return {_mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p.v), _mm256_slli_epi32(_mm256_castps_si256(t.v), 23)))};
  }
  static Vec zero_where_below(Vec value, Vec x, Vec limit) {
    return {_mm256_and_ps(value.v, _mm256_cmp_ps(x.v, limit.v, _CMP_NLT_UQ))};
  }
  static Vec reciprocal_guess(Vec d) {
    return {_mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32(kReciprocalMagic), _mm256_castps_si256(d.v)))};
  }
  static Vec load_bf16(const unsigned short* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
  }
  static void store_bf16(unsigned short* p, Vec x) {
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 all = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
                                        _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(all), 16);
    // Packing works on each half of the register alone.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  /// kVectorFloats rows of kVectorFloats floats into as many columns.
  static void transpose(const float* from, long stride, float* to, long to_stride) {
    __m256 a[8];
    __m256 b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      a[i] = unpack_low(b[i], b[i + 2]);
      a[i + 1] = unpack_high(b[i], b[i + 2]);
      a[i + 2] = unpack_low(b[i + 1], b[i + 3]);
      a[i + 3] = unpack_high(b[i + 1], b[i + 3]);
    }
    // Half h of a[4 i + c] is now column 4 h + c of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      _mm256_storeu_ps(to + c * to_stride, _mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
      _mm256_storeu_ps(to + (4 + c) * to_stride, _mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
    }
  }

  /// Sums of squares in double, one per lane.
  struct Squares {
    __m256d low = _mm256_setzero_pd();
    __m256d high = _mm256_setzero_pd();
    void add(Vec x) {
      const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.v));
      const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1));
      low = _mm256_fmadd_pd(a, a, low);
      high = _mm256_fmadd_pd(b, b, high);
    }
    double sum() const {
      const __m256d four = _mm256_add_pd(low, high);
      const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
      return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
    }
  };

 private:
  static __m256i first(int n) {
    alignas(32) static constexpr int kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + kVectorFloats - n));
  }
  static __m256 unpack_low(__m256 a, __m256 b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  }
  static __m256 unpack_high(__m256 a, __m256 b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  }
};

}  // namespace

constinit const TrainingKernels kAvx2TrainingKernels = training_table<Vec>("avx2");

}  // namespace butterfly
