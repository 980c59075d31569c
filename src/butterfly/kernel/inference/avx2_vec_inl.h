// 16 floats as two registers of AVX2 with FMA and F16C: every operation is done on both halves. Internal linkage
// throughout (see kernels.h).
#pragma once

#include <immintrin.h>

#include "butterfly/kernel/inference/attention_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"

namespace butterfly {
namespace {

struct Vec {
  static constexpr int kAttentionRowsAtOnce = 4;
  static constexpr int kScoresAtOnce = 4;
  __m256 a, b;

  static Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec load_first(const float* p, int n) {
    alignas(32) float values[kPanel] = {};
    for (int i = 0; i < n; ++i) values[i] = p[i];
    return load(values);
  }
  static Vec load_half(const unsigned short* p) {
    return {load_eight<PackedType::kF16>(p), load_eight<PackedType::kF16>(p + 8)};
  }
  static Vec load_bf16(const unsigned short* p) {
    return {load_eight<PackedType::kBF16>(p), load_eight<PackedType::kBF16>(p + 8)};
  }
  static Vec load_quants(const unsigned char* q) { return {widen_quants(q), widen_quants(q + 8)}; }
  static float widen_half(unsigned short half) { return _cvtsh_ss(half); }
  static void store_half(unsigned char* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store(float* p, Vec x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static Vec abs(Vec x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }
  float largest() const {
    const __m256 both = _mm256_max_ps(a, b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  static Vec add_exponent(Vec p, Vec t) { return {shift_in(p.a, t.a), shift_in(p.b, t.b)}; }
  static Vec zero_where_below(Vec value, Vec x, Vec limit) {
    return {_mm256_and_ps(value.a, _mm256_cmp_ps(x.a, limit.a, _CMP_NLT_UQ)),
            _mm256_and_ps(value.b, _mm256_cmp_ps(x.b, limit.b, _CMP_NLT_UQ))};
  }
  static BlockSums store_quants(Vec low, Vec high, signed char* q) {
    const __m256i words_low = _mm256_packs_epi32(round_quants(low.a), round_quants(low.b));
    const __m256i words_high = _mm256_packs_epi32(round_quants(high.a), round_quants(high.b));
    store_bytes(words_low, words_high, reinterpret_cast<unsigned char*>(q));
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i sums = _mm256_hadd_epi32(_mm256_madd_epi16(words_low, ones), _mm256_madd_epi16(words_high, ones));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));  // lower, lower, upper, upper
    return {_mm_cvtsi128_si32(four), _mm_extract_epi32(four, 2)};
  }
  /// Rounded half away from zero, at most 127; NaN gives 0.
  static void store_quants_away(Vec low, Vec high, unsigned char* q) {
    store_bytes(_mm256_packs_epi32(round_away(low.a), round_away(low.b)),
                _mm256_packs_epi32(round_away(high.a), round_away(high.b)), q);
  }

  /// Of kF16 or kBF16.
  template <PackedType kType>
  static __m256 load_eight(const unsigned short* p) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (kType == PackedType::kF16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }

 private:
  static void store_bytes(__m256i words_low, __m256i words_high, unsigned char* q) {
    // Packing works within 128-bit halves; the permutation restores the order.
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words_low, words_high),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  }
  static __m256 widen_quants(const unsigned char* q) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))));
  }
  static __m256i round_away(__m256 x) {
    const __m256 number = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
    const __m256 clamped = _mm256_min_ps(_mm256_max_ps(number, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    const __m256 sign = _mm256_and_ps(clamped, _mm256_set1_ps(-0.0f));
    return _mm256_cvttps_epi32(_mm256_add_ps(clamped, _mm256_or_ps(sign, _mm256_set1_ps(kBelowHalf))));
  }
  static __m256 shift_in(__m256 p, __m256 t) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
  }
  static __m256i round_quants(__m256 x) {
    const __m256 clamped = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    return _mm256_cvtps_epi32(clamped);
  }
};

}  // namespace
}  // namespace butterfly
