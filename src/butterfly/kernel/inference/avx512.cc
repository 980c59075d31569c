// AVX-512 (F, BW, DQ, VL) with VNNI: 16 floats are one register.
#include <immintrin.h>

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/simd_inl.h"

namespace butterfly {
namespace {

struct Vec {
  static constexpr int kAttentionRowsAtOnce = 8;
  __m512 v;

  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_first(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)};
  }
  static Vec load_half(const unsigned short* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec load_bf16(const unsigned short* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static Vec load_quants(const unsigned char* q) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q))))};
  }
  static float widen_half(unsigned short half) { return _cvtsh_ss(half); }
  static void store_half(unsigned char* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
  float largest() const { return _mm512_reduce_max_ps(v); }
  static Vec add_exponent(Vec p, Vec t) {
    return {_mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(t.v), 23)))};
  }
  static Vec zero_where_below(Vec value, Vec x, Vec limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
  }
  static int store_quants(Vec low, Vec high, signed char* q) {
    const __m512i a = round_quants(low.v);
    const __m512i b = round_quants(high.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + kPanel), _mm512_cvtepi32_epi8(b));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
  }
  /// Rounded half away from zero, at most 127; NaN gives 0.
  static void store_quants_away(Vec low, Vec high, unsigned char* q) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(round_away(low.v)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + kPanel), _mm512_cvtepi32_epi8(round_away(high.v)));
  }

 private:
  static __m512i round_away(__m512 x) {
    const __m512 number = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
    const __m512 clamped = _mm512_min_ps(_mm512_max_ps(number, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    const __m512 sign = _mm512_and_ps(clamped, _mm512_set1_ps(-0.0f));
    return _mm512_cvttps_epi32(_mm512_add_ps(clamped, _mm512_or_ps(sign, _mm512_set1_ps(kBelowHalf))));
  }
  static __m512i round_quants(__m512 x) {
    const __m512 clamped = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    return _mm512_cvtps_epi32(clamped);
  }
};

// Weights are stored unsigned, with 128 (or 8) added: VPDPBUSD multiplies unsigned by signed, and starting at
// -offset * sum(x) takes it out again, exactly.
template <PackedType kType, int M, int N>
void quant_tile(const LinearArgs& a, long row, long panel, long k_begin, long k_end, float* tile) {
  constexpr bool kNibbles = kType == PackedType::kQ4_0;
  constexpr long kBlockBytes = (kNibbles ? 16 : 32) * kPanel;
  constexpr int kOffset = kNibbles ? -8 : -128;
  constexpr long kAhead = 4096;
  const long blocks = a.cols / 32;
  const unsigned char* w = a.weights + panel * a.panel_stride;
  const signed char* x = a.xq + row * a.cols;
  const float* x_scales = a.x_scales + row * blocks;
  const int* x_sums = a.x_sums + row * blocks;
  const __m512i low_mask = _mm512_set1_epi8(15);
  __m512 acc[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[m][n] = _mm512_setzero_ps();
  }
  for (long block = k_begin / 32; block < k_end / 32; ++block) {
    __m512i dot[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512i start = _mm512_set1_epi32(kOffset * x_sums[m * blocks + block]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) dot[m][n] = start;
    }
    // One step takes 4 k of 16 rows; nibbles bring k and k + 16 in one byte.
#pragma GCC unroll 8
    for (int step = 0; step < (kNibbles ? 4 : 8); ++step) {
      __m512i first[N];
      __m512i second[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        const unsigned char* at = w + n * a.panel_stride + block * kBlockBytes + step * 64;
        if constexpr (M == 1) __builtin_prefetch(at + kAhead);
        first[n] = _mm512_loadu_si512(at);
        if constexpr (kNibbles) {
          second[n] = _mm512_and_si512(_mm512_srli_epi16(first[n], 4), low_mask);
          first[n] = _mm512_and_si512(first[n], low_mask);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const signed char* values = x + m * a.cols + block * 32 + step * 4;
        int quad;
        __builtin_memcpy(&quad, values, 4);
        const __m512i quads = _mm512_set1_epi32(quad);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) dot[m][n] = _mm512_dpbusd_epi32(dot[m][n], first[n], quads);
        if constexpr (kNibbles) {
          int upper;
          __builtin_memcpy(&upper, values + 16, 4);
          const __m512i uppers = _mm512_set1_epi32(upper);
#pragma GCC unroll 16
          for (int n = 0; n < N; ++n) dot[m][n] = _mm512_dpbusd_epi32(dot[m][n], second[n], uppers);
        }
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const unsigned char* scales = w + n * a.panel_stride + blocks * kBlockBytes + block * 2 * kPanel;
      const __m512 w_scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x_scales[m * blocks + block]));
        acc[m][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m][n]), scale, acc[m][n]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(tile + (m * N + n) * kPanel, acc[m][n]);
  }
}

template <PackedType kType>
constexpr TileTable<6, 2> kFloatTable = {{
    {float_tile<Vec, kType, 1, 1>, float_tile<Vec, kType, 1, 2>},
    {float_tile<Vec, kType, 2, 1>, float_tile<Vec, kType, 2, 2>},
    {float_tile<Vec, kType, 3, 1>, float_tile<Vec, kType, 3, 2>},
    {float_tile<Vec, kType, 4, 1>, float_tile<Vec, kType, 4, 2>},
    {float_tile<Vec, kType, 5, 1>, float_tile<Vec, kType, 5, 2>},
    {float_tile<Vec, kType, 6, 1>, float_tile<Vec, kType, 6, 2>},
}};

template <PackedType kType>
constexpr TileTable<6, 2> kQuantTable = {{
    {quant_tile<kType, 1, 1>, quant_tile<kType, 1, 2>},
    {quant_tile<kType, 2, 1>, quant_tile<kType, 2, 2>},
    {quant_tile<kType, 3, 1>, quant_tile<kType, 3, 2>},
    {quant_tile<kType, 4, 1>, quant_tile<kType, 4, 2>},
    {quant_tile<kType, 5, 1>, quant_tile<kType, 5, 2>},
    {quant_tile<kType, 6, 1>, quant_tile<kType, 6, 2>},
}};

void linear(const LinearArgs& a) {
  switch (a.type) {
    case PackedType::kF32:
      return linear_tiles<Vec>(a, kFloatTable<PackedType::kF32>, a.cols * 4);
    case PackedType::kF16:
      return linear_tiles<Vec>(a, kFloatTable<PackedType::kF16>, a.cols * 4);
    case PackedType::kBF16:
      return linear_tiles<Vec>(a, kFloatTable<PackedType::kBF16>, a.cols * 4);
    case PackedType::kQ8_0:
      return linear_tiles<Vec>(a, kQuantTable<PackedType::kQ8_0>, a.cols);
    case PackedType::kQ4_0:
      return linear_tiles<Vec>(a, kQuantTable<PackedType::kQ4_0>, a.cols);
  }
}

}  // namespace

constinit const Kernels kAvx512Kernels = {
    .name = "avx512",
    .linear = linear,
    .fold = fold_row,
    .quantize_row = quantize_row_simd<Vec>,
    .attention = attention_simd<Vec>,
    .rms_norm = rms_norm_simd<Vec>,
    .layer_norm = layer_norm_simd<Vec>,
    .rope = rope_row,
    .silu_mul = silu_mul_row,
    .gelu_mul = gelu_mul_row,
    .silu = silu_row,
    .gelu = gelu_row,
    .gelu_erf = gelu_erf_row,
    .clamped_swiglu = clamped_swiglu_row,
    .scale = scale_row,
    .soft_cap = soft_cap_row,
    .add = add_row,
    .store_key = store_cached_simd<Vec, kPanel>,
    .store_value = store_cached_simd<Vec, 1>,
    .floats_to_halves = floats_to_halves_simd<Vec>,
    .halves_to_floats = halves_to_floats_simd<Vec>,
    .floats_to_q8_0 = floats_to_q8_0_simd<Vec>,
    .q8_0_to_floats = q8_0_to_floats_simd<Vec>,
};

}  // namespace butterfly
