// Kernels written once over a vector of 16 floats, V, and compiled once per instruction set. V gives load, store,
// set1, fma, add, sub, mul, max (a > b ? a : b), exp and conversions; AVX-512 holds it in one register, AVX2 in two.
// The order of operations is reference.cc's. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/elementwise_inl.h"
#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

inline long min_of(long a, long b) {
  return a < b ? a : b;
}

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
void quantize_row_simd(const float* x, long n, signed char* q, float* scales, int* sums) {
  for (long block = 0; block < n / 32; ++block) {
    const V low = V::load(x + block * 32);
    const V high = V::load(x + block * 32 + kPanel);
    const float largest = V::max(V::abs(low), V::abs(high)).largest();
    const V inverse = V::set1(largest > 0.0f ? 127.0f / largest : 0.0f);
    sums[block] = V::store_quants(V::mul(low, inverse), V::mul(high, inverse), q + block * 32);
    scales[block] = largest / 127.0f;
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

/// Keys and values for the cache; halves are saturated (see store_cached).
template <class V, int kStep>
void store_cached_simd(const float* x, long n, bool half, unsigned char* out) {
  if (!half) return store_cached<kStep>(x, n, half, out);
  auto* halves = reinterpret_cast<unsigned short*>(out);
  long i = 0;
  for (; i + kPanel <= n; i += kPanel) {
    // NaN as the second operand stays NaN.
    const V bounded = V::min(V::set1(65504.0f), V::max(V::set1(-65504.0f), V::load(x + i)));
    if constexpr (kStep == 1) {
      V::store_half(out + 2 * i, bounded);
    } else {
      unsigned short narrow[kPanel];
      V::store_half(reinterpret_cast<unsigned char*>(narrow), bounded);
      for (int j = 0; j < kPanel; ++j) halves[(i + j) * kStep] = narrow[j];
    }
  }
  store_cached<kStep>(x + i, n - i, half, out + 2 * i * kStep);
}

// --- attention -----------------------------------------------------------------------------------------------------

template <class V, bool kHalf>
inline V load_cached(const unsigned char* base, long index) {
  if constexpr (kHalf) return V::load_half(reinterpret_cast<const unsigned short*>(base) + index);
  return V::load(reinterpret_cast<const float*>(base) + index);
}

/// Scores of R rows against the 16 keys of one group.
template <class V, bool kHalf, int R>
inline void score_group(const AttentionArgs& a, int row, const unsigned char* group, float* scores) {
  V acc[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = V::set1(0.0f);
  for (int d = 0; d < a.head_dim; ++d) {
    const V keys = load_cached<V, kHalf>(group, static_cast<long>(d) * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = V::fma(V::set1(a.q[row + r][d]), keys, acc[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) V::store(scores + r * kAttentionSegment, V::mul(acc[r], V::set1(a.scale)));
}

/// out[r, d .. d + C * 16) = chain over the segment's keys of probability * value.
template <class V, bool kHalf, int R, int C>
inline void mix_values(const AttentionArgs& a, int begin, int keys, long d, const float* p, float* out) {
  V acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = V::set1(0.0f);
  }
  for (int first = 0; first < keys; first += kKvPageTokens) {
    const unsigned char* page = a.v_pages[(begin + first) / kKvPageTokens];
    const int count = static_cast<int>(min_of(kKvPageTokens, keys - first));
    for (int j = 0; j < count; ++j) {
      V values[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        values[c] = load_cached<V, kHalf>(page, static_cast<long>(j) * a.v_stride + d + c * kPanel);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V weight = V::set1(p[r * kAttentionSegment + first + j]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = V::fma(weight, values[c], acc[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) V::store(out + r * a.v_stride + d + c * kPanel, acc[r][c]);
  }
}

/// C elements of the values of 16 keys, from d on, where values lie in their keys: acc[c] has a lane for each row.
template <class V, bool kHalf, int C>
inline void add_values_in_keys(const unsigned char* group, long d, int count, const float* weights, V* acc) {
  alignas(64) float values[C][kPanel];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) V::store(values[c], load_cached<V, kHalf>(group, (d + c) * kPanel));
  for (int j = 0; j < count; ++j) {
    const V weight = V::load(weights + j * kPanel);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[c] = V::fma(weight, V::set1(values[c][j]), acc[c]);
  }
}

/// mix_values where values lie in their keys, which are interleaved by 16: lanes are rows instead of elements.
template <class V, bool kHalf, int R>
inline void mix_values_in_keys(const AttentionArgs& a, int begin, int keys, const float* p, float* out) {
  constexpr int kAtOnce = 4, kKeyBytes = kHalf ? 2 : 4;
  alignas(64) float weights[kAttentionSegment * kPanel];
  for (int j = 0; j < keys; ++j) {
    for (int r = 0; r < kPanel; ++r) weights[j * kPanel + r] = r < R ? p[r * kAttentionSegment + j] : 0.0f;
  }
  for (long d = 0; d < a.value_dim; d += kAtOnce) {
    const int elements = static_cast<int>(min_of(kAtOnce, a.value_dim - d));
    V acc[kAtOnce];
    for (int c = 0; c < kAtOnce; ++c) acc[c] = V::set1(0.0f);
    for (int first = 0; first < keys; first += kPanel) {
      const int key = begin + first;
      const unsigned char* group =
          a.k_pages[key / kKvPageTokens] + static_cast<long>(key % kKvPageTokens) * a.head_dim * kKeyBytes;
      const int count = static_cast<int>(min_of(kPanel, keys - first));
      const float* own = weights + first * kPanel;
      if (elements == kAtOnce) {
        add_values_in_keys<V, kHalf, kAtOnce>(group, d, count, own, acc);
      } else {
        for (int c = 0; c < elements; ++c) add_values_in_keys<V, kHalf, 1>(group, d + c, count, own, acc + c);
      }
    }
    for (int c = 0; c < elements; ++c) {
      float of_rows[kPanel];
      V::store(of_rows, acc[c]);
      for (int r = 0; r < R; ++r) out[r * a.v_stride + d + c] = of_rows[r];
    }
  }
}

/// Turns one row's scores of keys [from, keys) into exp(score - max), the others to zero; returns max and sum.
template <class V>
inline void softmax_segment(float* scores, int from, int keys, int keys_all, float* max, float* sum) {
  const int groups = (keys + kPanel - 1) / kPanel;
  for (int j = 0; j < from; ++j) scores[j] = -1e30f;
  for (int j = keys; j < groups * kPanel; ++j) scores[j] = -1e30f;
  V largest = V::load(scores);
  for (int g = 1; g < groups; ++g) largest = V::max(V::load(scores + g * kPanel), largest);
  *max = largest.largest();
  V sums = V::set1(0.0f);
  for (int g = 0; g < groups; ++g) {
    const V p = exp_vector(V::sub(V::load(scores + g * kPanel), V::set1(*max)));
    V::store(scores + g * kPanel, p);
    sums = V::add(sums, p);
  }
  for (int j = groups * kPanel; j < keys_all; ++j) scores[j] = 0.0f;
  *sum = fold_vector(sums);
}

template <class V>
inline void fold_segment(const AttentionArgs& a, float max, float sum, const float* segment, bool first,
                         float* total_max, float* total_sum, float* total) {
  if (first) {
    *total_max = max;
    *total_sum = sum;
    for (int d = 0; d < a.v_stride; d += kPanel) V::store(total + d, V::load(segment + d));
    return;
  }
  const float new_max = max > *total_max ? max : *total_max;
  const float keep = exp_scalar(*total_max - new_max);
  const float take = exp_scalar(max - new_max);
  *total_sum = __builtin_fmaf(*total_sum, keep, sum * take);
  for (int d = 0; d < a.v_stride; d += kPanel) {
    V::store(total + d, V::fma(V::load(total + d), V::set1(keep), V::mul(V::load(segment + d), V::set1(take))));
  }
  *total_max = new_max;
}

/// R rows, starting at `row`, that share the keys.
template <class V, bool kHalf, int R, int C>
void attention_rows(const AttentionArgs& a, int row) {
  float* scores = a.scratch;
  float* segment = scores + kAttentionRows * kAttentionSegment;
  float* total = segment + kAttentionRows * a.v_stride;
  const int* visible = a.visible + row;
  int visible_max = 0;
  for (int r = 0; r < R; ++r) visible_max = visible[r] > visible_max ? visible[r] : visible_max;
  int first[R] = {};
  int first_segment[R] = {};
  int begin_all = visible_max;
  for (int r = 0; r < R; ++r) {
    if (a.first != nullptr) first[r] = a.first[row + r];
    first_segment[r] = first[r] / kAttentionSegment * kAttentionSegment;
    begin_all = first_segment[r] < begin_all ? first_segment[r] : begin_all;
  }
  const bool adjusted = a.cap != 0.0f || a.slopes != nullptr;
  const bool biased = a.biases != nullptr && !adjusted;
  float total_max[R] = {};
  float total_sum[R] = {};
  const int key_bytes = kHalf ? 2 : 4;
  for (int begin = begin_all; begin < visible_max; begin += kAttentionSegment) {
    const int keys_all = static_cast<int>(min_of(kAttentionSegment, visible_max - begin));
    for (int j = 0; j < keys_all; j += kPanel) {
      const int key = begin + j;
      const unsigned char* group =
          a.k_pages[key / kKvPageTokens] + static_cast<long>(key % kKvPageTokens) * a.head_dim * key_bytes;
      score_group<V, kHalf, R>(a, row, group, scores + j);
    }
    float max[R] = {};
    float sum[R] = {};
    for (int r = 0; r < R; ++r) {
      const int keys = static_cast<int>(min_of(keys_all, visible[r] - begin));
      float* own = scores + r * kAttentionSegment;
      if (keys <= 0 || begin < first_segment[r]) {
        for (int j = 0; j < keys_all; ++j) own[j] = 0.0f;
        continue;
      }
      if (adjusted) {
        for (int j = 0; j < keys; ++j) own[j] = adjust_score(a, row + r, begin + j, own[j]);
      } else if (biased) {
        add_row(a.biases[row + r] + begin, keys, own);
      }
      const int from = first[r] > begin ? first[r] - begin : 0;
      softmax_segment<V>(own, from, keys, keys_all, &max[r], &sum[r]);
    }
    if (a.v_pages == nullptr) {
      mix_values_in_keys<V, kHalf, R>(a, begin, keys_all, scores, segment);
    } else {
      long d = 0;
      for (; d + C * kPanel <= a.v_stride; d += C * kPanel) {
        mix_values<V, kHalf, R, C>(a, begin, keys_all, d, scores, segment);
      }
      for (; d < a.v_stride; d += kPanel) mix_values<V, kHalf, R, 1>(a, begin, keys_all, d, scores, segment);
    }
    for (int r = 0; r < R; ++r) {
      if (visible[r] <= begin || begin < first_segment[r]) continue;
      fold_segment<V>(a, max[r], sum[r], segment + r * a.v_stride, begin == first_segment[r], &total_max[r],
                      &total_sum[r], total + r * a.v_stride);
    }
  }
  const int value_dim = a.v_pages == nullptr ? a.value_dim : a.head_dim;
  for (int r = 0; r < R; ++r) {
    const float keep = add_sink(a, row + r, total_max[r], &total_sum[r]);
    for (int d = 0; d < value_dim; ++d) a.out[row + r][d] = total[r * a.v_stride + d] * keep / total_sum[r] + 0.0f;
  }
}

template <class V, bool kHalf>
void attention_typed(const AttentionArgs& a) {
  int row = 0;
  if constexpr (V::kAttentionRowsAtOnce >= 8) {
    for (; row + 8 <= a.rows; row += 8) attention_rows<V, kHalf, 8, 2>(a, row);
  }
  for (; row + 4 <= a.rows; row += 4) attention_rows<V, kHalf, 4, V::kAttentionRowsAtOnce / 4>(a, row);
  for (; row + 2 <= a.rows; row += 2) attention_rows<V, kHalf, 2, V::kAttentionRowsAtOnce / 4>(a, row);
  for (; row < a.rows; ++row) attention_rows<V, kHalf, 1, V::kAttentionRowsAtOnce / 4>(a, row);
}

template <class V>
void attention_simd(const AttentionArgs& a) {
  if (a.half) {
    attention_typed<V, true>(a);
  } else {
    attention_typed<V, false>(a);
  }
}

}  // namespace
}  // namespace butterfly
