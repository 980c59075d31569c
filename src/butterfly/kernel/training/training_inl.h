// Training kernels on rows, written once over a vector of floats, V, of the instruction set's own width, and compiled
// once per set. Elements beyond a multiple of the width go through the same operations in a vector of which the first
// lanes count, so a value does not depend on where a row was cut. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/training/training_kernels.h"
#include "butterfly/kernel/training/training_math_inl.h"

namespace butterfly {
namespace {

// --- loops -------------------------------------------------------------------------------------------------------

template <class V>
struct WholeVector {
  V load(const float* p) const { return V::load(p); }
  void store(float* p, V x) const { V::store(p, x); }
  V only(V x, V) const { return x; }
};

/// The end of a row: loads zeros behind it, stores nothing there.
template <class V>
struct FirstLanes {
  int n;
  V load(const float* p) const { return V::load_first(p, n); }
  void store(float* p, V x) const { V::store_first(p, n, x); }
  /// x, and `other` in the lanes behind the end.
  V only(V x, V other) const { return V::first_of(x, n, other); }
};

template <class V, class Body>
inline void each_vector(long n, const Body& body) {
  long i = 0;
  for (; i + V::kVectorFloats <= n; i += V::kVectorFloats) body(i, WholeVector<V>{});
  if (i < n) body(i, FirstLanes<V>{static_cast<int>(n - i)});
}

/// next(i, at, acc) for every vector of a row, in four chains, as one waits for the last operation of its chain.
template <class V, class Next, class Fold>
inline V reduce_vectors(long n, V start, const Next& next, const Fold& fold) {
  constexpr int kChains = 4;
  V acc[kChains] = {start, start, start, start};
  long i = 0;
  for (; i + kChains * V::kVectorFloats <= n; i += kChains * V::kVectorFloats) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) acc[c] = next(i + c * V::kVectorFloats, WholeVector<V>{}, acc[c]);
  }
  each_vector<V>(n - i, [&](long j, auto at) { acc[0] = next(i + j, at, acc[0]); });
  return fold(fold(acc[0], acc[1]), fold(acc[2], acc[3]));
}

template <class V, class Next>
inline float sum_vectors(long n, const Next& next) {
  return reduce_vectors(n, V::set1(0.0f), next, [](V a, V b) { return V::add(a, b); }).sum();
}

// --- functions ---------------------------------------------------------------------------------------------------

template <class V>
inline V exp_of(V x) {
  const V clamped = V::min(V::set1(kTrainExpHighest), x);  // NaN as the second operand stays
  const V t = V::fma(clamped, V::set1(kTrainLog2E), V::set1(kTrainRoundMagic));
  const V n = V::sub(t, V::set1(kTrainRoundMagic));
  const V r = V::fma(n, V::set1(-kTrainLn2), clamped);
  V p = V::set1(kTrainExpC[kTrainExpDegree]);
#pragma GCC unroll 8
  for (int i = kTrainExpDegree - 1; i >= 0; --i) p = V::fma(p, r, V::set1(kTrainExpC[i]));
  return V::zero_where_below(V::add_exponent(p, t), x, V::set1(kTrainExpLowest));
}

// Division takes longer than two steps r (1 + e + e^2), e = 1 - d r, from a guess made of the exponent's complement:
// they cube its error of 12 % to 2e-3 and 5e-9.
template <class V>
inline V reciprocal(V d) {
  V r = V::reciprocal_guess(d);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const V e = V::fnma(d, r, V::set1(1.0f));
    r = V::fma(r, V::fma(e, e, e), r);
  }
  return r;
}

template <class V>
inline V sigmoid(V x) {
  const V negative = V::min(V::set1(kSigmoidClamp), V::sub(V::set1(0.0f), x));
  return reciprocal(V::add(V::set1(1.0f), exp_of(negative)));
}

// --- norms -------------------------------------------------------------------------------------------------------

template <class V>
void rms_norm_simd(const float* x, const float* weight, float epsilon, long n, float* y, float* inverse) {
  const float squares = sum_vectors<V>(n, [&](long i, auto at, V sum) {
    const V value = at.load(x + i);
    return V::fma(value, value, sum);
  });
  const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + epsilon);
  const V scale = V::set1(r);
  each_vector<V>(n,
                 [&](long i, auto at) { at.store(y + i, V::mul(V::mul(at.load(x + i), scale), at.load(weight + i))); });
  *inverse = r;
}

template <class V>
void rms_norm_backward_simd(const float* dy, const float* x, const float* weight, float inverse, long n, float* dx,
                            float* dweight) {
  const float dot = sum_vectors<V>(n, [&](long i, auto at, V sum) {
    return V::fma(V::mul(at.load(dy + i), at.load(weight + i)), at.load(x + i), sum);
  });
  const V r = V::set1(inverse);
  const V shift = V::set1(dot / static_cast<float>(n) * inverse * inverse);
  each_vector<V>(n, [&](long i, auto at) {
    const V value = at.load(x + i);
    const V slope = at.load(dy + i);
    const V change = V::fnma(value, shift, V::mul(slope, at.load(weight + i)));
    at.store(dx + i, V::fma(r, change, at.load(dx + i)));
    at.store(dweight + i, V::fma(slope, V::mul(value, r), at.load(dweight + i)));
  });
}

template <class V>
void layer_norm_simd(const float* x, const float* weight, const float* bias, float epsilon, long n, float* y,
                     float* mean, float* inverse) {
  const float total = sum_vectors<V>(n, [&](long i, auto at, V sum) { return V::add(at.load(x + i), sum); });
  const float centre = total / static_cast<float>(n);
  const V middle = V::set1(centre);
  const float squares = sum_vectors<V>(n, [&](long i, auto at, V sum) {
    const V centred = V::sub(at.load(x + i), middle);
    return at.only(V::fma(centred, centred, sum), sum);
  });
  const float r = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + epsilon);
  const V scale = V::set1(r);
  each_vector<V>(n, [&](long i, auto at) {
    const V h = V::mul(V::sub(at.load(x + i), middle), scale);
    const V shift = bias != nullptr ? at.load(bias + i) : V::set1(0.0f);
    at.store(y + i, V::fma(h, at.load(weight + i), shift));
  });
  *mean = centre;
  *inverse = r;
}

template <class V>
void layer_norm_backward_simd(const float* dy, const float* x, const float* weight, float mean, float inverse, long n,
                              float* dx, float* dweight, float* dbias) {
  const V middle = V::set1(mean);
  const V r = V::set1(inverse);
  const float total =
      sum_vectors<V>(n, [&](long i, auto at, V sum) { return V::fma(at.load(dy + i), at.load(weight + i), sum); });
  const float dot = sum_vectors<V>(n, [&](long i, auto at, V sum) {
    const V h = V::mul(V::sub(at.load(x + i), middle), r);
    return V::fma(V::mul(at.load(dy + i), at.load(weight + i)), h, sum);
  });
  const V total_mean = V::set1(total / static_cast<float>(n));
  const V dot_mean = V::set1(dot / static_cast<float>(n));
  each_vector<V>(n, [&](long i, auto at) {
    const V h = V::mul(V::sub(at.load(x + i), middle), r);
    const V slope = at.load(dy + i);
    const V change = V::fnma(h, dot_mean, V::sub(V::mul(slope, at.load(weight + i)), total_mean));
    at.store(dx + i, V::fma(r, change, at.load(dx + i)));
    at.store(dweight + i, V::fma(slope, h, at.load(dweight + i)));
    if (dbias != nullptr) at.store(dbias + i, V::add(slope, at.load(dbias + i)));
  });
}

// --- positions and activations -------------------------------------------------------------------------------------

template <class V>
void rope_simd(float* x, const float* cos, const float* sin, float direction, long pairs, bool adjacent) {
  if (!adjacent) {
    const V sign = V::set1(direction);
    return each_vector<V>(pairs, [&](long i, auto at) {
      const V first = at.load(x + i);
      const V second = at.load(x + pairs + i);
      const V c = at.load(cos + i);
      const V s = V::mul(sign, at.load(sin + i));
      at.store(x + i, V::fnma(second, s, V::mul(first, c)));
      at.store(x + pairs + i, V::fma(first, s, V::mul(second, c)));
    });
  }
  for (long i = 0; i < pairs; ++i) {
    const float first = x[2 * i];
    const float second = x[2 * i + 1];
    const float s = direction * sin[i];
    x[2 * i] = __builtin_fmaf(first, cos[i], -(second * s));
    x[2 * i + 1] = __builtin_fmaf(first, s, second * cos[i]);
  }
}

/// Elements of a row ahead, as long as the memory takes: rows of several matrices are read and written side by side,
/// and the processor begins anew to fetch ahead at each border of a page.
inline constexpr long kFetchAhead = 1024;

template <class V, class... Rows>
inline void fetch_ahead(long i, const Rows*... rows) {
  (V::prefetch(rows + i + kFetchAhead), ...);
}

template <class V>
void silu_mul_simd(const float* gate, const float* up, long n, float* y) {
  each_vector<V>(n, [&](long i, auto at) {
    fetch_ahead<V>(i, gate, up, y);
    const V g = at.load(gate + i);
    at.store(y + i, V::mul(V::mul(g, sigmoid(g)), at.load(up + i)));
  });
}

template <class V>
void silu_mul_backward_simd(const float* dy, const float* gate, const float* up, long n, float* dgate, float* dup) {
  const V one = V::set1(1.0f);
  each_vector<V>(n, [&](long i, auto at) {
    fetch_ahead<V>(i, dy, gate, up, dgate, dup);
    const V g = at.load(gate + i);
    const V slope = at.load(dy + i);
    const V s = sigmoid(g);
    const V dy_up = V::mul(slope, at.load(up + i));
    at.store(dup + i, V::mul(slope, V::mul(g, s)));
    at.store(dgate + i, V::mul(V::mul(dy_up, s), V::fma(g, V::sub(one, s), one)));
  });
}

template <class V>
void gelu_simd(const float* x, long n, float* y) {
  each_vector<V>(n, [&](long i, auto at) {
    const V value = at.load(x + i);
    const V square = V::mul(V::set1(kGeluCubic), V::mul(value, value));
    at.store(y + i, V::mul(value, sigmoid(V::mul(V::set1(kGeluTwice), V::fma(value, square, value)))));
  });
}

template <class V>
void gelu_backward_simd(const float* dy, const float* x, long n, float* dx) {
  const V one = V::set1(1.0f);
  each_vector<V>(n, [&](long i, auto at) {
    const V value = at.load(x + i);
    const V square = V::mul(V::set1(kGeluCubic), V::mul(value, value));
    const V s = sigmoid(V::mul(V::set1(kGeluTwice), V::fma(value, square, value)));
    const V inner = V::mul(V::set1(kGeluTwice), V::fma(V::set1(3.0f), square, one));
    const V slope = V::fma(V::mul(V::mul(value, s), V::sub(one, s)), inner, s);
    at.store(dx + i, V::mul(at.load(dy + i), slope));
  });
}

/// As normal_tail() in training_reference.cc.
template <class V>
inline V normal_tail_of(V x, V* bell) {
  const V zero = V::set1(0.0f);
  const V z = V::mul(V::max(x, V::sub(zero, x)), V::set1(kRootHalf));
  *bell = exp_of(V::fnma(z, z, zero));
  const V t = reciprocal(V::fma(V::set1(kErfcP), z, V::set1(1.0f)));
  V sum = V::set1(kErfcA[kErfcTerms - 1]);
#pragma GCC unroll 8
  for (int i = kErfcTerms - 2; i >= 0; --i) sum = V::fma(sum, t, V::set1(kErfcA[i]));
  return V::mul(V::mul(V::set1(0.5f), V::mul(sum, t)), *bell);
}

/// The normal distribution at x: the tail, or 1 less it.
template <class V>
inline V normal_below(V x, V tail) {
  const V between = V::fnma(V::set1(2.0f), tail, V::set1(1.0f));
  return V::add(tail, V::zero_where_below(between, x, V::set1(0.0f)));
}

template <class V>
void gelu_erf_simd(const float* x, long n, float* y) {
  each_vector<V>(n, [&](long i, auto at) {
    const V value = at.load(x + i);
    V bell;
    const V tail = normal_tail_of(value, &bell);
    at.store(y + i, V::mul(value, normal_below(value, tail)));
  });
}

template <class V>
void gelu_erf_backward_simd(const float* dy, const float* x, long n, float* dx) {
  each_vector<V>(n, [&](long i, auto at) {
    const V value = at.load(x + i);
    V bell;
    const V tail = normal_tail_of(value, &bell);
    const V slope = V::fma(V::mul(value, V::set1(kNormalDensity)), bell, normal_below(value, tail));
    at.store(dx + i, V::mul(at.load(dy + i), slope));
  });
}

template <class V>
inline V tanh_of(V x) {
  // NaN as the second operand stays.
  const V low = V::max(V::set1(-kTanhClamp), x);
  const V y = V::mul(V::min(V::set1(kTanhClamp), low), V::set1(0.125f));
  const V square = V::mul(y, y);
  const V nine = V::set1(945.0f);
  const V above = V::mul(y, V::fma(V::add(square, V::set1(105.0f)), square, nine));
  const V below = V::fma(V::fma(V::set1(15.0f), square, V::set1(420.0f)), square, nine);
  V t = V::div(above, below);
#pragma GCC unroll 4
  for (int i = 0; i < kTanhDoublings; ++i) t = V::div(V::add(t, t), V::fma(t, t, V::set1(1.0f)));
  return t;
}

template <class V>
void cap_values_simd(float cap, long n, float* y, float* slope) {
  each_vector<V>(n, [&](long i, auto at) {
    const V t = tanh_of(V::div(at.load(y + i), V::set1(cap)));
    at.store(y + i, V::mul(V::set1(cap), t));
    at.store(slope + i, V::fnma(t, t, V::set1(1.0f)));
  });
}

// --- loss --------------------------------------------------------------------------------------------------------

/// The first pass goes block by block through the first-level cache: each block's maximum, then exp(x - maximum) in
/// place and its sum. The second multiplies each block by what brings it to the common maximum and sum.
template <class V>
float softmax_cross_entropy_simd(float* logits, long vocab, long target, float scale) {
  constexpr long kBlocks = 512;
  constexpr float kLowest = -3e38f;  // below every logit but -infinity, whose exp is then 0 and not NaN
  const long even = (vocab + kBlocks - 1) / kBlocks;
  const long block = even > 1024 ? even : 1024;
  const long blocks = (vocab + block - 1) / block;
  float maxima[kBlocks];
  float sums[kBlocks];
  const float wanted = logits[target];
  float largest = kLowest;
  for (long b = 0; b < blocks; ++b) {
    float* x = logits + b * block;
    const long n = vocab - b * block < block ? vocab - b * block : block;
    const V lowest = V::set1(kLowest);
    // NaN as the first operand of max gives the second; the sum will show it.
    maxima[b] = reduce_vectors(
                    n, lowest, [&](long i, auto at, V acc) { return V::max(at.only(at.load(x + i), lowest), acc); },
                    [](V first, V second) { return V::max(first, second); })
                    .largest();
    const V top = V::set1(maxima[b]);
    sums[b] = sum_vectors<V>(n, [&](long i, auto at, V sum) {
      const V p = exp_of(V::sub(at.load(x + i), top));
      at.store(x + i, p);
      return at.only(V::add(sum, p), sum);
    });
    largest = maxima[b] > largest ? maxima[b] : largest;
  }
  double total = 0.0;
  for (long b = 0; b < blocks; ++b) {
    maxima[b] = train_exp(maxima[b] - largest);
    total += static_cast<double>(sums[b]) * maxima[b];
  }
  const auto factor = static_cast<float>(scale / total);
  for (long b = 0; b < blocks; ++b) {
    float* x = logits + b * block;
    const long n = vocab - b * block < block ? vocab - b * block : block;
    const V share = V::set1(maxima[b] * factor);
    each_vector<V>(n, [&](long i, auto at) { at.store(x + i, V::mul(at.load(x + i), share)); });
  }
  logits[target] -= scale;
  return static_cast<float>(train_log(total)) - (wanted - largest);
}

// --- optimizers and sums -------------------------------------------------------------------------------------------

template <class V>
void adamw_simd(const AdamwArgs& args, long n, const float* gradient, float* weight, float* m, float* v) {
  const V beta1 = V::set1(args.beta1);
  const V beta2 = V::set1(args.beta2);
  const V rest1 = V::set1(1.0f - args.beta1);
  const V rest2 = V::set1(1.0f - args.beta2);
  const V rate = V::set1(args.rate);
  each_vector<V>(n, [&](long i, auto at) {
    const V g = V::mul(at.load(gradient + i), V::set1(args.gradient_scale));
    const V first = V::fma(beta1, at.load(m + i), V::mul(rest1, g));
    const V second = V::fma(beta2, at.load(v + i), V::mul(rest2, V::mul(g, g)));
    const V w = at.load(weight + i);
    const V size = V::add(V::sqrt(V::mul(second, V::set1(args.correction2))), V::set1(args.epsilon));
    const V step = V::fma(V::set1(args.decay), w, V::div(V::mul(first, V::set1(args.correction1)), size));
    at.store(m + i, first);
    at.store(v + i, second);
    at.store(weight + i, V::fnma(rate, step, w));
  });
}

template <class V>
void sgd_simd(float rate, float momentum, float decay, float gradient_scale, long n, const float* gradient,
              float* weight, float* momentum_buffer) {
  each_vector<V>(n, [&](long i, auto at) {
    const V w = at.load(weight + i);
    V step = V::fma(V::set1(decay), w, V::mul(at.load(gradient + i), V::set1(gradient_scale)));
    if (momentum_buffer != nullptr) {
      step = V::fma(V::set1(momentum), at.load(momentum_buffer + i), step);
      at.store(momentum_buffer + i, step);
    }
    at.store(weight + i, V::fnma(V::set1(rate), step, w));
  });
}

template <class V>
void add_simd(const float* x, long n, float* y) {
  each_vector<V>(n, [&](long i, auto at) { at.store(y + i, V::add(at.load(y + i), at.load(x + i))); });
}

template <class V>
void add_scaled_simd(const float* x, float scale, long n, float* y) {
  const V factor = V::set1(scale);
  each_vector<V>(n, [&](long i, auto at) { at.store(y + i, V::fma(factor, at.load(x + i), at.load(y + i))); });
}

template <class V>
double sum_of_squares_simd(const float* x, long n) {
  typename V::Squares squares;
  each_vector<V>(n, [&](long i, auto at) { squares.add(at.load(x + i)); });
  return squares.sum();
}

// --- bf16 --------------------------------------------------------------------------------------------------------

template <class V>
void floats_to_bf16_simd(const float* x, long n, unsigned short* y) {
  long i = 0;
  for (; i + V::kVectorFloats <= n; i += V::kVectorFloats) V::store_bf16(y + i, V::load(x + i));
  if (i == n) return;
  unsigned short last[V::kVectorFloats];
  V::store_bf16(last, V::load_first(x + i, static_cast<int>(n - i)));
  for (long j = i; j < n; ++j) y[j] = last[j - i];
}

template <class V>
void bf16_to_floats_simd(const unsigned short* x, long n, float* y) {
  long i = 0;
  for (; i + V::kVectorFloats <= n; i += V::kVectorFloats) V::store(y + i, V::load_bf16(x + i));
  for (; i < n; ++i) y[i] = __builtin_bit_cast(float, static_cast<unsigned>(x[i]) << 16);
}

}  // namespace
}  // namespace butterfly
