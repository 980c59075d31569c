// The functions that training's kernels share, one element at a time. Unlike inference's they let NaN through, so that
// a loss says when a run has diverged. Internal linkage throughout (see kernels.h).
#pragma once

namespace butterfly {
namespace {

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2, Taylor to r^6: 2e-7 relative, most of it from ln 2 in one
// part, which costs n * 2e-9.
constexpr float kTrainLog2E = 0x1.715476p+0f;
constexpr float kTrainLn2 = 0x1.62e430p-1f;
// Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
constexpr float kTrainRoundMagic = 12582912.0f;
constexpr float kTrainExpLowest = -86.0f;  // below: 0; keeps 2^n * exp(r) normal
constexpr float kTrainExpHighest = 88.0f;
constexpr int kTrainExpDegree = 6;
constexpr float kTrainExpC[kTrainExpDegree + 1] = {1.0f, 1.0f, 0.5f, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720};

inline float train_exp(float x) {
  const float clamped = x > kTrainExpHighest ? kTrainExpHighest : x;
  const float t = __builtin_fmaf(clamped, kTrainLog2E, kTrainRoundMagic);
  const float n = t - kTrainRoundMagic;
  const float r = __builtin_fmaf(n, -kTrainLn2, clamped);
  float p = kTrainExpC[kTrainExpDegree];
  for (int i = kTrainExpDegree - 1; i >= 0; --i) p = __builtin_fmaf(p, r, kTrainExpC[i]);
  const unsigned bits = __builtin_bit_cast(unsigned, p) + (__builtin_bit_cast(unsigned, t) << 23);
  return x < kTrainExpLowest ? 0.0f : __builtin_bit_cast(float, bits);
}

/// log(x) of a normal x > 0: x = 2^e * m, m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)); the terms to
/// the 13th power leave 1e-12. Zero and less give -infinity, NaN stays.
inline double train_log(double x) {
  if (x <= 0.0) return -__builtin_inf();
  if (!(x < __builtin_inf())) return x;
  unsigned long bits = __builtin_bit_cast(unsigned long, x);
  // Moves the border of the exponent from 1 to sqrt(1/2).
  constexpr unsigned long kRootHalf = 0x3fe6a09e667f3bcdul;
  constexpr unsigned long kOne = 0x3ff0000000000000ul;
  bits += kOne - kRootHalf;
  const long exponent = static_cast<long>(bits >> 52) - 1023;
  const double m = __builtin_bit_cast(double, (bits & 0xffffffffffffful) + kRootHalf);
  const double s = (m - 1.0) / (m + 1.0);
  const double s2 = s * s;
  double series = 1.0 / 13;
  for (int odd = 11; odd >= 1; odd -= 2) series = series * s2 + 1.0 / odd;
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + 2.0 * s * series;
}

// 0.5 x (1 + tanh(u)) = x * sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3). https://arxiv.org/abs/1606.08415
constexpr float kGeluTwice = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.044715f;

/// Minus the bits of a float: its reciprocal within 12 %.
constexpr int kReciprocalMagic = 0x7ef311c7;

/// Beyond it sigmoid(-x) is 2e-35: clamped there, 1 + exp stays where a reciprocal is a normal number.
constexpr float kSigmoidClamp = 80.0f;

// erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2), t = 1 / (1 + p z), z >= 0: Abramowitz and Stegun, 7.1.26.
constexpr float kErfcP = 0.3275911f;
constexpr int kErfcTerms = 5;
constexpr float kErfcA[kErfcTerms] = {0.254829592f, -0.284496736f, 1.421413741f, -1.453152027f, 1.061405429f};
constexpr float kRootHalf = 0.70710678f;
constexpr float kNormalDensity = 0.39894228f;  // 1 / sqrt(2 pi)

// tanh(x) from tanh(x / 8) by three doublings, tanh(2 y) = 2 t / (1 + t^2), of which none cancels; tanh(x / 8) is a
// truncated continued fraction; 1e-7 for |x| up to kTanhClamp, beyond which tanh is 1 in float. NaN stays NaN.
constexpr float kTanhClamp = 10.0f;
constexpr int kTanhDoublings = 3;

inline float train_tanh(float x) {
  const float low = x < -kTanhClamp ? -kTanhClamp : x;
  const float y = (low > kTanhClamp ? kTanhClamp : low) * 0.125f;
  const float square = y * y;
  const float above = y * ((square + 105.0f) * square + 945.0f);
  const float below = (15.0f * square + 420.0f) * square + 945.0f;
  float t = above / below;
  for (int i = 0; i < kTanhDoublings; ++i) t = 2.0f * t / (1.0f + t * t);
  return t;
}

inline float train_sigmoid(float x) {
  const float negative = -x > kSigmoidClamp ? kSigmoidClamp : -x;
  return 1.0f / (1.0f + train_exp(negative));
}

}  // namespace
}  // namespace butterfly
