// Training's attention over a vector of floats, V (see training_inl.h): tiles of kAttentionTile queries and as many
// keys are copied into scratch, padded with zeros and transposed where a matmul needs it, so that all work is matmuls
// of small dense matrices held in registers. Tiles above the diagonal are never touched, and on the diagonal only what
// lies below it is multiplied. https://arxiv.org/abs/2205.14135
#pragma once

#include "butterfly/kernel/training/training_attention_scratch.h"
#include "butterfly/kernel/training/training_inl.h"

namespace butterfly {
namespace {

inline long least(long a, long b) {
  return a < b ? a : b;
}

/// What of a matmul on the diagonal is needed or not zero: C left of and on the diagonal; the same of A; A right of
/// it.
enum class Triangle { kNone, kLowerC, kLowerA, kUpperA };

/// C[m, n] (+)= A[m, k] B[k, n]. B and C are rows of whole vectors; A is read element by element at any strides.
struct SmallMatmul {
  const float* a;
  long a_row, a_col;
  const float* b;
  long b_stride;
  float* c;
  long c_stride;
  long m, n, k;
  Triangle triangle;
  bool add;
};

template <class V, int M, int N>
inline void matmul_tile(const SmallMatmul& p, long row, long col, long k_begin, long k_end) {
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + col;
  float* c = p.c + row * p.c_stride + col;
  V acc[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[m][n] = p.add ? V::load(c + m * p.c_stride + n * V::kVectorFloats) : V::set1(0.0f);
  }
  for (long k = k_begin; k < k_end; ++k) {
    V right[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) right[n] = V::load(b + k * p.b_stride + n * V::kVectorFloats);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V left = V::set1(a[m * p.a_row + k * p.a_col]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(left, right[n], acc[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) V::store(c + m * p.c_stride + n * V::kVectorFloats, acc[m][n]);
  }
}

template <class V, int M>
void matmul_rows(const SmallMatmul& p, long row) {
  long n = p.n;
  long k_begin = 0;
  long k_end = p.k;
  if (p.triangle == Triangle::kLowerC)
    n = least(n, (row + M + V::kVectorFloats - 1) / V::kVectorFloats * V::kVectorFloats);
  if (p.triangle == Triangle::kLowerA) k_end = least(k_end, row + M);
  if (p.triangle == Triangle::kUpperA) k_begin = least(k_end, row);
  constexpr int kMost = V::kTileVectors;
  long col = 0;
  for (; col + kMost * V::kVectorFloats <= n; col += kMost * V::kVectorFloats)
    matmul_tile<V, M, kMost>(p, row, col, k_begin, k_end);
  if constexpr (kMost > 2) {
    for (; col + 2 * V::kVectorFloats <= n; col += 2 * V::kVectorFloats)
      matmul_tile<V, M, 2>(p, row, col, k_begin, k_end);
  }
  for (; col < n; col += V::kVectorFloats) matmul_tile<V, M, 1>(p, row, col, k_begin, k_end);
}

template <class V>
void multiply(const SmallMatmul& p) {
  long row = 0;
  for (; row + 6 <= p.m; row += 6) matmul_rows<V, 6>(p, row);
  for (; row + 4 <= p.m; row += 4) matmul_rows<V, 4>(p, row);
  for (; row < p.m; ++row) matmul_rows<V, 1>(p, row);
}

/// Rows of a head -> [kAttentionTile, width], zeros behind each row and behind the last.
template <class V>
void pack_rows(const float* x, long stride, long rows, long head_dim, long width, float* packed) {
  for (long r = 0; r < kAttentionTile; ++r) {
    float* row = packed + r * width;
    long filled = 0;
    if (r < rows) {
      each_vector<V>(head_dim, [&](long d, auto at) { V::store(row + d, at.load(x + r * stride + d)); });
      filled = (head_dim + V::kVectorFloats - 1) / V::kVectorFloats * V::kVectorFloats;
    }
    for (long d = filled; d < width; d += V::kVectorFloats) V::store(row + d, V::set1(0.0f));
  }
}

/// [kAttentionTile, width] -> [width, kAttentionTile].
template <class V>
void transpose(const float* packed, long width, float* transposed) {
  for (long d = 0; d < width; d += V::kVectorFloats) {
    for (long r = 0; r < kAttentionTile; r += V::kVectorFloats) {
      V::transpose(packed + r * width + d, width, transposed + d * kAttentionTile + r, kAttentionTile);
    }
  }
}

/// One tile of queries against one of keys.
struct TilePair {
  long row, rows;  // the first query and their number
  long key, keys;
  long window;  // 0: none
  bool diagonal() const { return row == key; }
  /// Keys of the tile that row r of it sees: [hidden, visible).
  long visible(long r) const { return diagonal() ? least(keys, r + 1) : keys; }
  long hidden(long r) const { return window > 0 && row + r - window >= key ? row + r - window + 1 - key : 0; }
  Triangle lower_c() const { return diagonal() ? Triangle::kLowerC : Triangle::kNone; }
  Triangle lower_a() const { return diagonal() ? Triangle::kLowerA : Triangle::kNone; }
  Triangle upper_a() const { return diagonal() ? Triangle::kUpperA : Triangle::kNone; }
};

/// The first tile of keys of which some query of the tile that begins with `row` sees something.
inline long first_key_tile(const TrainAttentionArgs& a, long row) {
  return a.first_key(row) / kAttentionTile * kAttentionTile;
}

/// Rows of queries from `key` on that see something of its tile end before this one.
inline long rows_end(const TrainAttentionArgs& a, long key) {
  return a.window == 0 ? a.seq : least(a.seq, key + kAttentionTile - 1 + a.window);
}

template <class V>
inline V cap_of(V score, float cap) {
  return V::mul(V::set1(cap), tanh_of(V::div(score, V::set1(cap))));
}

/// Overwrites the first scores of a row, those of keys before its window.
inline void hide(long count, float value, float* scores) {
  for (long j = 0; j < count; ++j) scores[j] = value;
}

/// Scores of one tile into probabilities relative to each row's maximum so far; what was summed under a smaller maximum
/// is scaled down first.
template <class V>
void softmax_tile(const TilePair& pair, const TrainAttentionArgs& a, const AttentionScratch& s, bool first) {
  constexpr float kLowest = -3e38f;
  const V lowest = V::set1(kLowest);
  for (long r = 0; r < pair.rows; ++r) {
    float* scores = s.scores + r * kAttentionTile;
    const long hidden = least(pair.hidden(r), pair.keys);
    const long visible = pair.visible(r);
    V top = lowest;
    each_vector<V>(visible, [&](long j, auto at) {
      V x = V::mul(V::load(scores + j), V::set1(a.scale));
      if (a.cap != 0.0f) x = cap_of(x, a.cap);
      V::store(scores + j, x);
      top = V::max(at.only(x, lowest), top);
    });
    if (hidden > 0) {
      hide(hidden, kLowest, scores);
      top = lowest;
      each_vector<V>(visible, [&](long j, auto at) { top = V::max(at.only(V::load(scores + j), lowest), top); });
    }
    float& maximum = s.maximum[pair.row + r];
    float& sum = s.sum[pair.row + r];
    const float largest = top.largest();
    if (first) {
      maximum = largest;
      sum = 0.0f;
    } else if (largest > maximum) {
      const float keep = train_exp(maximum - largest);
      maximum = largest;
      sum *= keep;
      float* out = s.rows + (pair.row + r) * s.width;
      for (long d = 0; d < s.width; d += V::kVectorFloats) V::store(out + d, V::mul(V::load(out + d), V::set1(keep)));
    }
    const V shift = V::set1(maximum);
    V total = V::set1(0.0f);
    each_vector<V>(visible, [&](long j, auto at) {
      const V p = at.only(exp_of(V::sub(V::load(scores + j), shift)), V::set1(0.0f));
      V::store(scores + j, p);
      total = V::add(total, p);
    });
    if (hidden < visible) sum += total.sum();
    if (hidden > 0) hide(hidden, 0.0f, scores);
    for (long j = (visible + V::kVectorFloats - 1) / V::kVectorFloats * V::kVectorFloats; j < kAttentionTile;
         j += V::kVectorFloats) {
      V::store(scores + j, V::set1(0.0f));
    }
  }
}

template <class V>
void attention_simd(const TrainAttentionArgs& a) {
  const AttentionScratch s(a.scratch, a.seq, a.head_dim);
  float* queries = s.tiles[0];
  float* keys = s.tiles[1];
  float* keys_transposed = s.tiles[2];
  float* values = s.tiles[3];
  for (long key = 0; key < a.seq; key += kAttentionTile) {
    const long key_count = least(kAttentionTile, a.seq - key);
    pack_rows<V>(a.k + key * a.k_stride, a.k_stride, key_count, a.head_dim, s.width, keys);
    transpose<V>(keys, s.width, keys_transposed);
    pack_rows<V>(a.v + key * a.v_stride, a.v_stride, key_count, a.head_dim, s.width, values);
    for (long row = key; row < rows_end(a, key); row += kAttentionTile) {
      const TilePair pair{row, least(kAttentionTile, a.seq - row), key, key_count, a.window};
      const bool first = key == first_key_tile(a, row);
      pack_rows<V>(a.q + row * a.q_stride, a.q_stride, pair.rows, a.head_dim, s.width, queries);
      multiply<V>({queries, s.width, 1, keys_transposed, kAttentionTile, s.scores, kAttentionTile, pair.rows,
                   kAttentionTile, a.head_dim, pair.lower_c(), false});
      softmax_tile<V>(pair, a, s, first);
      multiply<V>({s.scores, kAttentionTile, 1, values, s.width, s.rows + row * s.width, s.width, pair.rows, s.width,
                   key_count, pair.lower_a(), !first});
    }
  }
  for (long t = 0; t < a.seq; ++t) {
    const V share = V::set1(1.0f / s.sum[t]);
    each_vector<V>(a.head_dim, [&](long d, auto at) {
      at.store(a.out + t * a.out_stride + d, V::mul(at.load(s.rows + t * s.width + d), share));
    });
    a.log_sum_exp[t] = s.maximum[t] + static_cast<float>(train_log(s.sum[t]));
  }
}

/// Scores into probabilities p, and the gradients of the probabilities into those of the scores:
/// scale * p * (dp - sum over the row of p dp); that sum is dout . out.
template <class V>
void differentiate_tile(const TilePair& pair, const TrainAttentionArgs& a, const AttentionScratch& s) {
  const V zero = V::set1(0.0f);
  for (long r = 0; r < pair.rows; ++r) {
    float* scores = s.scores + r * kAttentionTile;
    float* slopes = s.slopes + r * kAttentionTile;
    const long visible = pair.visible(r);
    const V shift = V::set1(-a.log_sum_exp[pair.row + r]);
    const V mean = V::set1(s.sum[pair.row + r]);
    if (a.cap == 0.0f) {
      each_vector<V>(visible, [&](long j, auto at) {
        const V p = exp_of(V::fma(V::load(scores + j), V::set1(a.scale), shift));
        const V ds = V::mul(V::mul(p, V::set1(a.scale)), V::sub(V::load(slopes + j), mean));
        V::store(scores + j, at.only(p, zero));
        V::store(slopes + j, at.only(ds, zero));
      });
    } else {
      each_vector<V>(visible, [&](long j, auto at) {
        const V t = tanh_of(V::div(V::mul(V::load(scores + j), V::set1(a.scale)), V::set1(a.cap)));
        const V p = exp_of(V::fma(t, V::set1(a.cap), shift));
        const V slope = V::mul(V::fnma(t, t, V::set1(1.0f)), V::set1(a.scale));
        const V ds = V::mul(V::mul(p, slope), V::sub(V::load(slopes + j), mean));
        V::store(scores + j, at.only(p, zero));
        V::store(slopes + j, at.only(ds, zero));
      });
    }
    const long hidden = least(pair.hidden(r), pair.keys);
    hide(hidden, 0.0f, scores);
    hide(hidden, 0.0f, slopes);
    for (long j = (visible + V::kVectorFloats - 1) / V::kVectorFloats * V::kVectorFloats; j < kAttentionTile;
         j += V::kVectorFloats) {
      V::store(scores + j, zero);
      V::store(slopes + j, zero);
    }
  }
}

template <class V>
void add_rows(const float* packed, long width, long rows, long head_dim, float* y, long stride) {
  for (long r = 0; r < rows; ++r) {
    each_vector<V>(head_dim, [&](long d, auto at) {
      float* to = y + r * stride + d;
      at.store(to, V::add(at.load(to), at.load(packed + r * width + d)));
    });
  }
}

/// The gradients that pass between one tile of keys, whose packed forms lie in `s`, and one of queries.
template <class V>
void attention_backward_pair(const TrainAttentionGradientArgs& b, const AttentionScratch& s, const TilePair& pair,
                             bool first_keys) {
  const TrainAttentionArgs& a = b.forward;
  constexpr long kTile = kAttentionTile;
  const long w = s.width;
  float* queries = s.tiles[0];
  float* douts = s.tiles[1];
  const float* keys = s.tiles[2];
  const float* keys_transposed = s.tiles[3];
  const float* values_transposed = s.tiles[4];
  float* dkeys = s.tiles[5];
  float* dvalues = s.tiles[6];
  pack_rows<V>(a.q + pair.row * a.q_stride, a.q_stride, pair.rows, a.head_dim, w, queries);
  pack_rows<V>(b.dout + pair.row * b.dout_stride, b.dout_stride, pair.rows, a.head_dim, w, douts);
  multiply<V>(
      {queries, w, 1, keys_transposed, kTile, s.scores, kTile, pair.rows, kTile, a.head_dim, pair.lower_c(), false});
  multiply<V>(
      {douts, w, 1, values_transposed, kTile, s.slopes, kTile, pair.rows, kTile, a.head_dim, pair.lower_c(), false});
  differentiate_tile<V>(pair, a, s);
  // The tile on the diagonal comes first for each tile of keys.
  const bool more = !pair.diagonal();
  multiply<V>({s.scores, 1, kTile, douts, w, dvalues, w, pair.keys, w, pair.rows, pair.upper_a(), more});
  multiply<V>({s.slopes, 1, kTile, queries, w, dkeys, w, pair.keys, w, pair.rows, pair.upper_a(), more});
  multiply<V>(
      {s.slopes, kTile, 1, keys, w, s.rows + pair.row * w, w, pair.rows, w, pair.keys, pair.lower_a(), !first_keys});
}

template <class V>
void attention_backward_simd(const TrainAttentionGradientArgs& b) {
  const TrainAttentionArgs& a = b.forward;
  const AttentionScratch s(a.scratch, a.seq, a.head_dim);
  for (long t = 0; t < a.seq; ++t) {
    s.sum[t] = sum_vectors<V>(a.head_dim, [&](long d, auto at, V sum) {
      return V::fma(at.load(b.dout + t * b.dout_stride + d), at.load(a.out + t * a.out_stride + d), sum);
    });
  }
  for (long key = 0; key < a.seq; key += kAttentionTile) {
    const long key_count = least(kAttentionTile, a.seq - key);
    pack_rows<V>(a.v + key * a.v_stride, a.v_stride, key_count, a.head_dim, s.width, s.tiles[2]);
    transpose<V>(s.tiles[2], s.width, s.tiles[4]);
    pack_rows<V>(a.k + key * a.k_stride, a.k_stride, key_count, a.head_dim, s.width, s.tiles[2]);
    transpose<V>(s.tiles[2], s.width, s.tiles[3]);
    for (long row = key; row < rows_end(a, key); row += kAttentionTile) {
      const TilePair pair{row, least(kAttentionTile, a.seq - row), key, key_count, a.window};
      attention_backward_pair<V>(b, s, pair, key == first_key_tile(a, row));
    }
    add_rows<V>(s.tiles[5], s.width, key_count, a.head_dim, b.dk + key * b.dk_stride, b.dk_stride);
    add_rows<V>(s.tiles[6], s.width, key_count, a.head_dim, b.dv + key * b.dv_stride, b.dv_stride);
  }
  for (long t = 0; t < a.seq; ++t) {
    each_vector<V>(a.head_dim,
                   [&](long d, auto at) { at.store(b.dq + t * b.dq_stride + d, at.load(s.rows + t * s.width + d)); });
  }
}

// --- the table ---------------------------------------------------------------------------------------------------

template <class V>
constexpr TrainingKernels training_table(const char* name) {
  return {name,
          rms_norm_simd<V>,
          rms_norm_backward_simd<V>,
          layer_norm_simd<V>,
          layer_norm_backward_simd<V>,
          rope_simd<V>,
          silu_mul_simd<V>,
          silu_mul_backward_simd<V>,
          gelu_simd<V>,
          gelu_backward_simd<V>,
          gelu_erf_simd<V>,
          gelu_erf_backward_simd<V>,
          cap_values_simd<V>,
          attention_simd<V>,
          attention_backward_simd<V>,
          softmax_cross_entropy_simd<V>,
          adamw_simd<V>,
          sgd_simd<V>,
          add_simd<V>,
          add_scaled_simd<V>,
          sum_of_squares_simd<V>,
          floats_to_bf16_simd<V>,
          bf16_to_floats_simd<V>};
}

}  // namespace
}  // namespace butterfly
