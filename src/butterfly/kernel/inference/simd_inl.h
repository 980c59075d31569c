// Kernels written once over a vector of 16 floats, V, and compiled once per instruction set. V gives load, store,
// set1, fma, add, sub, mul, max (a > b ? a : b), exp and conversions; AVX-512 holds it in one register, AVX2 in two.
// The order of operations is reference.cc's. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/elementwise_inl.h"
#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

// The largest float below 1/2. Added to |x| < 2^22 before truncating it rounds half away from zero: a whole 1/2 would
// carry the float just below 1/2 up to 1.
constexpr float kBelowHalf = 0x1.fffffep-2f;

template <class V>
inline V exp_vector(V x) {
  const V clamped = V::min(x, V::set1(kExpHighest));
  const V t = V::fma(clamped, V::set1(kLog2E), V::set1(kRoundMagic));
  const V n = V::sub(t, V::set1(kRoundMagic));
  V r = V::fma(n, V::set1(-kLn2High), clamped);
  r = V::fma(n, V::set1(-kLn2Low), r);
  V p = V::set1(kExpC[7]);
#pragma GCC unroll 8
  for (int i = 6; i >= 0; --i) p = V::fma(p, r, V::set1(kExpC[i]));
  return V::zero_where_below(V::add_exponent(p, t), x, V::set1(kExpLowest));
}

template <class V>
inline float fold_vector(V v) {
  alignas(64) float sums[kPanel];
  V::store(sums, v);
  for (int width = 8; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
  }
  return sums[0];
}

// --- norms and quantisation of activations -----------------------------------------------------------------------

template <class V>
void quantize_row_simd(const float* x, long n, long group, signed char* q, float* scales, BlockSums* sums) {
  for (long begin = 0; begin < n; begin += group) {
    const long end = min_of(begin + group, n);
    V most = V::set1(0.0f);
    for (long i = begin; i < end; i += kPanel) most = V::max(V::abs(V::load(x + i)), most);
    const float largest = most.largest();
    const V inverse = V::set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    for (long i = begin; i < end; i += 32) {
      sums[i / 32] = V::store_quants(V::mul(V::load(x + i), inverse), V::mul(V::load(x + i + kPanel), inverse), q + i);
      scales[i / 32] = largest / 127.0f;
    }
  }
}

template <class V>
void rms_norm_simd(const float* x, const float* weight, float epsilon, long n, float* y) {
  V sums = V::set1(0.0f);
  long i = 0;
  for (; i + kPanel <= n; i += kPanel) sums = V::fma(V::load(x + i), V::load(x + i), sums);
  if (i < n) {
    const V tail = V::load_first(x + i, static_cast<int>(n - i));
    sums = V::fma(tail, tail, sums);
  }
  const float inverse = 1.0f / __builtin_sqrtf(fold_vector(sums) / static_cast<float>(n) + epsilon);
  for (i = 0; i < n; ++i) y[i] = (x[i] * inverse) * weight[i];
}

template <class V>
void layer_norm_simd(const float* x, const float* weight, const float* bias, float epsilon, long n, float* y) {
  V sums = V::set1(0.0f);
  long i = 0;
  for (; i + kPanel <= n; i += kPanel) sums = V::add(sums, V::load(x + i));
  if (i < n) sums = V::add(sums, V::load_first(x + i, static_cast<int>(n - i)));
  const float mean = fold_vector(sums) / static_cast<float>(n);
  V squares = V::set1(0.0f);
  for (i = 0; i + kPanel <= n; i += kPanel) {
    const V centred = V::sub(V::load(x + i), V::set1(mean));
    squares = V::fma(centred, centred, squares);
  }
  if (i < n) {
    alignas(64) float rest[kPanel] = {};
    for (long j = i; j < n; ++j) rest[j - i] = x[j] - mean;
    squares = V::fma(V::load(rest), V::load(rest), squares);
  }
  const float inverse = 1.0f / __builtin_sqrtf(fold_vector(squares) / static_cast<float>(n) + epsilon);
  for (i = 0; i < n; ++i) {
    y[i] = __builtin_fmaf((x[i] - mean) * inverse, weight[i], bias != nullptr ? bias[i] : 0.0f);
  }
}

// --- rows in other types ------------------------------------------------------------------------------------------

template <class V>
void floats_to_halves_simd(const float* x, long n, unsigned char* halves) {
  long i = 0;
  for (; i + kPanel <= n; i += kPanel) V::store_half(halves + 2 * i, V::load(x + i));
  for (; i < n; ++i) {
    const unsigned short half = half_of(x[i]);
    __builtin_memcpy(halves + 2 * i, &half, 2);
  }
}

template <class V>
void halves_to_floats_simd(const unsigned char* halves, long n, float* y) {
  long i = 0;
  for (; i + kPanel <= n; i += kPanel) {
    V::store(y + i, V::load_half(reinterpret_cast<const unsigned short*>(halves + 2 * i)));
  }
  for (; i < n; ++i) {
    unsigned short half;
    __builtin_memcpy(&half, halves + 2 * i, 2);
    y[i] = V::widen_half(half);
  }
}

constexpr long kBlock = 32;                 // floats
constexpr long kQ8BlockBytes = 2 + kBlock;  // scale as a half, quants

/// Unlike quantize_row, whose bits are ours: the scale is rounded to a half, quants are rounded half away from zero.
template <class V>
void floats_to_q8_0_simd(const float* x, long n, unsigned char* blocks) {
  for (; n >= kBlock; n -= kBlock, x += kBlock, blocks += kQ8BlockBytes) {
    const V low = V::load(x);
    const V high = V::load(x + kPanel);
    // NaN as the first operand of max gives the second.
    const float largest = V::max(V::abs(high), V::max(V::abs(low), V::set1(0.0f))).largest();
    const float scale = largest / 127.0f;
    const V inverse = V::set1(scale != 0.0f ? 1.0f / scale : 0.0f);
    const unsigned short half = half_of(scale);
    __builtin_memcpy(blocks, &half, 2);
    V::store_quants_away(V::mul(low, inverse), V::mul(high, inverse), blocks + 2);
  }
}

template <class V>
void q8_0_to_floats_simd(const unsigned char* blocks, long n, float* y) {
  for (; n >= kBlock; n -= kBlock, y += kBlock, blocks += kQ8BlockBytes) {
    unsigned short half;
    __builtin_memcpy(&half, blocks, 2);
    const V scale = V::set1(V::widen_half(half));
    V::store(y, V::mul(scale, V::load_quants(blocks + 2)));
    V::store(y + kPanel, V::mul(scale, V::load_quants(blocks + 2 + kPanel)));
  }
}

}  // namespace
}  // namespace butterfly
