// Attention over the cache and storing in it, written once over a vector of 16 floats, V (simd_inl.h). The order of
// operations is reference.cc's. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/kernel/inference/simd_inl.h"

namespace butterfly {
namespace {

// --- storing -------------------------------------------------------------------------------------------------------

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

template <class V>
void store_key_simd(const float* x, long n, CacheType type, unsigned char* group, int key) {
  if (type == CacheType::kQ8_0) return store_cached_blocks(x, n, floats_to_q8_0_simd<V>, blocks_of_key(n, group, key));
  store_cached_simd<V, kPanel>(x, n, type == CacheType::kF16, group + key * cache_element_bytes(type));
}

template <class V>
void store_value_simd(const float* x, long n, CacheType type, unsigned char* page, int token) {
  if (type == CacheType::kQ8_0) {
    return store_cached_blocks(x, n, floats_to_q8_0_simd<V>, blocks_of_value(n, page, token));
  }
  store_cached_simd<V, 1>(x, n, type == CacheType::kF16, page + token * value_stride_of(n) * cache_element_bytes(type));
}

// --- attention -----------------------------------------------------------------------------------------------------

template <class V, CacheType kType>
inline V load_cached(const unsigned char* base, long index) {
  if constexpr (kType == CacheType::kF16) return V::load_half(reinterpret_cast<const unsigned short*>(base) + index);
  if constexpr (kType == CacheType::kQ8_0) return V::load_quants(base + index);
  if constexpr (kType == CacheType::kF32) return V::load(reinterpret_cast<const float*>(base) + index);
}

template <class V>
inline V load_scales(const unsigned char* halves) {
  return V::load_half(reinterpret_cast<const unsigned short*>(halves));
}

/// Where the group of `key` lies, the first of 16.
template <CacheType kType>
inline const unsigned char* group_of(const AttentionArgs& a, int key) {
  return a.k_pages[key / kKvPageTokens] + key % kKvPageTokens / kPanel * key_group_bytes(kType, a.head_dim);
}

/// Groups of 16 keys that R rows meet at once: one sum after the other would wait for itself. A q8_0 key has two sums.
template <class V, CacheType kType, int R>
constexpr int score_groups_at_once() {
  constexpr int kSums = kType == CacheType::kQ8_0 ? V::kScoresAtOnce / 2 : V::kScoresAtOnce;
  return R * 4 <= kSums ? 4 : R < kSums ? kSums / R : 1;
}

/// acc += the chain over elements [begin, end) of queries and keys.
template <class V, CacheType kType, int R, int G>
inline void add_score_products(const AttentionArgs& a, int row, const unsigned char* const (&groups)[G], long begin,
                               long end, V (&acc)[G][R]) {
  for (long d = begin; d < end; ++d) {
    V keys[G];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) keys[g] = load_cached<V, kType>(groups[g], d * kPanel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V query = V::set1(a.q[row + r][d]);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) acc[g][r] = V::fma(query, keys[g], acc[g][r]);
    }
  }
}

template <class V, int R, int G>
inline void clear_scores(V (&acc)[G][R]) {
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[g][r] = V::set1(0.0f);
  }
}

/// Scores of R rows against the 16 keys of each of G groups, the first of which is `key`.
template <class V, CacheType kType, int R, int G>
inline void score_groups(const AttentionArgs& a, int row, int key, float* scores) {
  const unsigned char* groups[G];
  for (int g = 0; g < G; ++g) groups[g] = group_of<kType>(a, key + g * kPanel);
  V acc[G][R];
  clear_scores(acc);
  if constexpr (kType == CacheType::kQ8_0) {
    long scales_at = a.head_dim * kPanel;
    for (long begin = 0; begin < a.head_dim; begin += kCacheBlock, scales_at += 2 * kPanel) {
      V sums[G][R];
      clear_scores(sums);
      add_score_products<V, kType, R, G>(a, row, groups, begin, min_of(begin + kCacheBlock, a.head_dim), sums);
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g) {
        const V scale = load_scales<V>(groups[g] + scales_at);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[g][r] = V::fma(sums[g][r], scale, acc[g][r]);
      }
    }
  } else {
    add_score_products<V, kType, R, G>(a, row, groups, 0, a.head_dim, acc);
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      V::store(scores + r * kAttentionSegment + g * kPanel, V::mul(acc[g][r], V::set1(a.scale)));
    }
  }
}

/// Scores of R rows against `keys` keys of a segment, from `begin` on; those of their last group are all there.
template <class V, CacheType kType, int R>
inline void score_keys(const AttentionArgs& a, int row, int begin, int keys, float* scores) {
  constexpr int G = score_groups_at_once<V, kType, R>();
  int j = 0;
  for (; j + (G - 1) * kPanel < keys; j += G * kPanel) score_groups<V, kType, R, G>(a, row, begin + j, scores + j);
  if constexpr (G > 1) {
    for (; j < keys; j += kPanel) score_groups<V, kType, R, 1>(a, row, begin + j, scores + j);
  }
}

/// scaled[r, j] = p[r, j] * the scale of block `block` of value j, for the segment's keys from `begin` on.
template <class V, int R>
inline void scale_by_values(const AttentionArgs& a, int begin, int keys, long block, const float* p, float* scaled) {
  for (int first = 0; first < keys; first += kPanel) {
    const int key = begin + first;
    const unsigned char* scales = a.v_pages[key / kKvPageTokens] +
                                  (static_cast<long>(a.v_stride) + 2 * block) * kKvPageTokens +
                                  2 * (key % kKvPageTokens);
    const V scale = load_scales<V>(scales);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int at = r * kAttentionSegment + first;
      V::store(scaled + at, V::mul(V::load(p + at), scale));
    }
  }
}

/// out[r, d .. d + C * 16) = chain over the segment's keys of probability * value.
template <class V, CacheType kType, int R, int C>
inline void mix_values(const AttentionArgs& a, int begin, int keys, long d, const float* p, float* out) {
  V acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = V::set1(0.0f);
  }
  alignas(64) float scaled[kType == CacheType::kQ8_0 ? R * kAttentionSegment : 1];
  if constexpr (kType == CacheType::kQ8_0) {
    static_assert(C * kPanel <= kCacheBlock, "one block of each value");
    scale_by_values<V, R>(a, begin, keys, d / kCacheBlock, p, scaled);
    p = scaled;
  }
  for (int first = 0; first < keys; first += kKvPageTokens) {
    const unsigned char* page = a.v_pages[(begin + first) / kKvPageTokens];
    const int count = static_cast<int>(min_of(kKvPageTokens, keys - first));
    for (int j = 0; j < count; ++j) {
      V values[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        values[c] = load_cached<V, kType>(page, static_cast<long>(j) * a.v_stride + d + c * kPanel);
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
template <class V, CacheType kType, int C>
inline void add_values_in_keys(const unsigned char* group, long d, int count, const float* weights, V* acc) {
  alignas(64) float values[C][kPanel];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) V::store(values[c], load_cached<V, kType>(group, (d + c) * kPanel));
  for (int j = 0; j < count; ++j) {
    const V weight = V::load(weights + j * kPanel);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[c] = V::fma(weight, V::set1(values[c][j]), acc[c]);
  }
}

/// weights[j] *= the scale of block `block` of key j; the weights of a key are those of all rows.
template <class V>
inline void scale_by_keys(const AttentionArgs& a, int begin, int keys, long block, const float* weights,
                          float* scaled) {
  for (int first = 0; first < keys; first += kPanel) {
    alignas(64) float scales[kPanel];
    const unsigned char* group = group_of<CacheType::kQ8_0>(a, begin + first);
    V::store(scales, load_scales<V>(group + (a.head_dim + 2 * block) * kPanel));
    for (int j = first; j < first + kPanel; ++j) {
      V::store(scaled + j * kPanel, V::mul(V::load(weights + j * kPanel), V::set1(scales[j - first])));
    }
  }
}

/// mix_values where values lie in their keys, which are interleaved by 16: lanes are rows instead of elements.
template <class V, CacheType kType, int R>
inline void mix_values_in_keys(const AttentionArgs& a, int begin, int keys, const float* p, float* out) {
  constexpr int kAtOnce = 4;
  constexpr bool kScaled = kType == CacheType::kQ8_0;
  alignas(64) float weights[kAttentionSegment * kPanel];
  alignas(64) float scaled[kScaled ? kAttentionSegment * kPanel : 1];
  for (int j = 0; j < (keys + kPanel - 1) / kPanel * kPanel; ++j) {
    for (int r = 0; r < kPanel; ++r) {
      weights[j * kPanel + r] = r < R && j < keys ? p[r * kAttentionSegment + j] : 0.0f;
    }
  }
  for (long d = 0; d < a.value_dim; d += kAtOnce) {
    if (kScaled && d % kCacheBlock == 0) scale_by_keys<V>(a, begin, keys, d / kCacheBlock, weights, scaled);
    const int elements = static_cast<int>(min_of(kAtOnce, a.value_dim - d));
    V acc[kAtOnce];
    for (int c = 0; c < kAtOnce; ++c) acc[c] = V::set1(0.0f);
    for (int first = 0; first < keys; first += kPanel) {
      const unsigned char* group = group_of<kType>(a, begin + first);
      const int count = static_cast<int>(min_of(kPanel, keys - first));
      const float* own = (kScaled ? scaled : weights) + first * kPanel;
      if (elements == kAtOnce) {
        add_values_in_keys<V, kType, kAtOnce>(group, d, count, own, acc);
      } else {
        for (int c = 0; c < elements; ++c) add_values_in_keys<V, kType, 1>(group, d + c, count, own, acc + c);
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
template <class V, CacheType kType, int R, int C>
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
  for (int begin = begin_all; begin < visible_max; begin += kAttentionSegment) {
    const int keys_all = static_cast<int>(min_of(kAttentionSegment, visible_max - begin));
    score_keys<V, kType, R>(a, row, begin, keys_all, scores);
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
      mix_values_in_keys<V, kType, R>(a, begin, keys_all, scores, segment);
    } else {
      long d = 0;
      for (; d + C * kPanel <= a.v_stride; d += C * kPanel) {
        mix_values<V, kType, R, C>(a, begin, keys_all, d, scores, segment);
      }
      for (; d < a.v_stride; d += kPanel) mix_values<V, kType, R, 1>(a, begin, keys_all, d, scores, segment);
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

template <class V, CacheType kType>
void attention_typed(const AttentionArgs& a) {
  int row = 0;
  if constexpr (V::kAttentionRowsAtOnce >= 8) {
    for (; row + 8 <= a.rows; row += 8) attention_rows<V, kType, 8, 2>(a, row);
  }
  for (; row + 4 <= a.rows; row += 4) attention_rows<V, kType, 4, V::kAttentionRowsAtOnce / 4>(a, row);
  for (; row + 2 <= a.rows; row += 2) attention_rows<V, kType, 2, V::kAttentionRowsAtOnce / 4>(a, row);
  for (; row < a.rows; ++row) attention_rows<V, kType, 1, V::kAttentionRowsAtOnce / 4>(a, row);
}

template <class V>
void attention_simd(const AttentionArgs& a) {
  switch (a.type) {
    case CacheType::kF32:
      return attention_typed<V, CacheType::kF32>(a);
    case CacheType::kF16:
      return attention_typed<V, CacheType::kF16>(a);
    case CacheType::kQ8_0:
      return attention_typed<V, CacheType::kQ8_0>(a);
  }
}

}  // namespace
}  // namespace butterfly
