#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "butterfly/base/check.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

using Out = std::uint8_t*;

/// `value` without its fraction as an integer of [low, high]; NaN gives the integer next to 0.
int truncated(float value, int low, int high) {
  if (std::isnan(value)) return std::clamp(0, low, high);
  return static_cast<int>(std::clamp(value, static_cast<float>(low), static_cast<float>(high)));
}
int rounded(float value, int low, int high) {
  return truncated(std::nearbyint(value), low, high);
}
float inverse_of(float scale) {
  return scale != 0.0f ? 1.0f / scale : 0.0f;
}

void put_half(float value, Out out) {
  const std::uint16_t half = float_to_half(value);
  std::memcpy(out, &half, 2);
}

/// The value that is read back.
float put_half_of(float value, Out out) {
  put_half(value, out);
  std::uint16_t half = 0;
  std::memcpy(&half, out, 2);
  return half_to_float(half);
}

/// `bits` of a byte that was 0 there.
void put_bits(Out out, int bits, int shift) {
  *out = static_cast<std::uint8_t>(*out | bits << shift);
}

/// Element i of 0..15 in low nibbles, of 16..31 in high ones.
void put_nibbles(const int* quants, Out out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<std::uint8_t>((quants[i] & 15) | (quants[i + 16] & 15) << 4);
}
void put_fifth_bits(const int* quants, Out out) {
  std::fill(out, out + 4, std::uint8_t{0});
  for (int i = 0; i < 32; ++i) out[i / 8] = static_cast<std::uint8_t>(out[i / 8] | (quants[i] >> 4 & 1) << i % 8);
}

struct Extremes {
  float lowest = std::numeric_limits<float>::infinity();
  float highest = -std::numeric_limits<float>::infinity();
  float farthest = 0.0f;  // from 0, the first of equals
};
Extremes extremes_of(const float* x, int count) {
  Extremes found;
  for (int i = 0; i < count; ++i) {
    if (x[i] < found.lowest) found.lowest = x[i];
    if (x[i] > found.highest) found.highest = x[i];
    if (std::fabs(x[i]) > std::fabs(found.farthest)) found.farthest = x[i];
  }
  if (found.lowest > found.highest) found.lowest = found.highest = 0.0f;  // NaN alone
  return found;
}

/// q4_1 and q5_1: floor((x - lowest) / scale + 1/2) with scale = (highest - lowest) / steps.
void quantize_from_lowest(const float* x, int steps, int* quants, Out halves) {
  const Extremes of = extremes_of(x, kQuantBlock);
  const float scale = (of.highest - of.lowest) / static_cast<float>(steps);
  const float inverse = inverse_of(scale);
  for (int i = 0; i < kQuantBlock; ++i) quants[i] = truncated((x[i] - of.lowest) * inverse + 0.5f, 0, steps);
  put_half(scale, halves);
  put_half(of.lowest, halves + 2);
}

void encode_q4_1(const float* x, Out out) {
  int quants[kQuantBlock];
  quantize_from_lowest(x, 15, quants, out);
  put_nibbles(quants, out + 4);
}

void encode_q5_0(const float* x, Out out) {
  int quants[kQuantBlock];
  const float scale = extremes_of(x, kQuantBlock).farthest / -16.0f;
  const float inverse = inverse_of(scale);
  for (int i = 0; i < kQuantBlock; ++i) quants[i] = truncated(x[i] * inverse + 16.5f, 0, 31);
  put_half(scale, out);
  put_fifth_bits(quants, out + 2);
  put_nibbles(quants, out + 6);
}

void encode_q5_1(const float* x, Out out) {
  int quants[kQuantBlock];
  quantize_from_lowest(x, 31, quants, out);
  put_fifth_bits(quants, out + 4);
  put_nibbles(quants, out + 8);
}

/// How x is approximated: scale * quant - minimum.
struct Fit {
  float scale = 0.0f;
  float minimum = 0.0f;
};

/// What a squared error counts: with few steps, large values are worth more than small ones.
enum class Weigh : std::uint8_t { kEqually, kByMagnitude, kBySquare };
double weight_of(float value, Weigh weigh) {
  const double magnitude = std::fabs(static_cast<double>(value));
  return weigh == Weigh::kEqually ? 1.0 : weigh == Weigh::kByMagnitude ? magnitude : magnitude * magnitude;
}

/// Tries grids around the one that spans all values, and with each one's quants the scale of least squares.
Fit fit_symmetric(const float* x, int count, int steps, Weigh weigh) {
  const float farthest = extremes_of(x, count).farthest;
  if (farthest == 0.0f) return {};
  Fit best{.scale = farthest / static_cast<float>(-steps)};
  double best_gain = 0.0;
  for (int shift = -9; shift <= 9; ++shift) {
    const float inverse = -(static_cast<float>(steps) + 0.1f * static_cast<float>(shift)) / farthest;
    double xq = 0.0;
    double qq = 0.0;
    for (int i = 0; i < count; ++i) {
      const double quant = rounded(x[i] * inverse, -steps, steps - 1);
      const double weight = weight_of(x[i], weigh);
      xq += weight * quant * static_cast<double>(x[i]);
      qq += weight * quant * quant;
    }
    // The squared error is sum(x^2) - gain.
    const double gain = qq > 0.0 ? xq * xq / qq : 0.0;
    if (!(gain > best_gain)) continue;
    best_gain = gain;
    best.scale = static_cast<float>(xq / qq);
  }
  return best;
}

/// The same with a minimum, which is not negative.
Fit fit_with_minimum(const float* x, int count, int steps, Weigh weigh) {
  const Extremes of = extremes_of(x, count);
  const float lowest = std::min(of.lowest, 0.0f);
  const float width = of.highest - lowest;
  if (!(width > 0.0f)) return {.minimum = -lowest};
  Fit best{.scale = width / static_cast<float>(steps), .minimum = -lowest};
  double best_error = std::numeric_limits<double>::infinity();
  for (int shift = -10; shift <= 10; ++shift) {
    const float inverse = (static_cast<float>(steps) + 0.1f * static_cast<float>(shift)) / width;
    double all = 0.0, x_sum = 0.0, q_sum = 0.0, xq = 0.0, qq = 0.0, xx = 0.0;
    for (int i = 0; i < count; ++i) {
      const double quant = rounded((x[i] - lowest) * inverse, 0, steps);
      const auto value = static_cast<double>(x[i]);
      const double weight = weight_of(x[i], weigh);
      all += weight;
      x_sum += weight * value;
      q_sum += weight * quant;
      xq += weight * value * quant;
      qq += weight * quant * quant;
      xx += weight * value * value;
    }
    const double spread = all * qq - q_sum * q_sum;
    if (spread <= 0.0) continue;
    double scale = (all * xq - x_sum * q_sum) / spread;
    double minimum = (scale * q_sum - x_sum) / all;
    if (minimum < 0.0) {
      minimum = 0.0;
      scale = xq / qq;
    }
    if (!(scale > 0.0)) continue;
    const double error = xx + scale * scale * qq + all * minimum * minimum - 2.0 * scale * xq + 2.0 * minimum * x_sum -
                         2.0 * scale * minimum * q_sum;
    if (!(error < best_error)) continue;
    best_error = error;
    best = {.scale = static_cast<float>(scale), .minimum = static_cast<float>(minimum)};
  }
  return best;
}

/// Halves of scale and minimum and 12 bytes of eight of each in 6 bits; quants of 256 elements. q4_k and q5_k.
void quantize_eight(const float* x, int steps, int* quants, Out out) {
  constexpr int kSubs = 8;
  Fit fits[kSubs];
  float scale_max = 0.0f;
  float minimum_max = 0.0f;
  for (int s = 0; s < kSubs; ++s) {
    fits[s] = fit_with_minimum(x + s * kQuantBlock, kQuantBlock, steps, Weigh::kEqually);
    scale_max = std::max(scale_max, fits[s].scale);
    minimum_max = std::max(minimum_max, fits[s].minimum);
  }
  const float scale = put_half_of(scale_max / 63.0f, out);
  const float minimum = put_half_of(minimum_max / 63.0f, out + 2);
  Out packed = out + 4;
  std::fill(packed, packed + 12, std::uint8_t{0});
  const auto put = [&](int at, int bits) { packed[at] = static_cast<std::uint8_t>(packed[at] | bits); };
  for (int s = 0; s < kSubs; ++s) {
    const int scale_quant = rounded(fits[s].scale * inverse_of(scale), 0, 63);
    const int minimum_quant = rounded(fits[s].minimum * inverse_of(minimum), 0, 63);
    if (s < 4) {
      put(s, scale_quant);
      put(4 + s, minimum_quant);
    } else {
      put(4 + s, (scale_quant & 15) | (minimum_quant & 15) << 4);
      put(s - 4, scale_quant >> 4 << 6);
      put(s, minimum_quant >> 4 << 6);
    }
    const float inverse = inverse_of(scale * static_cast<float>(scale_quant));
    const float below = minimum * static_cast<float>(minimum_quant);
    for (int i = s * kQuantBlock; i < (s + 1) * kQuantBlock; ++i)
      quants[i] = rounded((x[i] + below) * inverse, 0, steps);
  }
}

/// Pairs of 32 elements share 32 bytes.
void put_nibble_pairs(const int* quants, Out out) {
  for (int i = 0; i < kSuperBlock / 2; ++i) {
    const int at = i / 32 * 64 + i % 32;
    out[i] = static_cast<std::uint8_t>((quants[at] & 15) | (quants[at + 32] & 15) << 4);
  }
}

void encode_q4_k(const float* x, Out out) {
  int quants[kSuperBlock];
  quantize_eight(x, 15, quants, out);
  put_nibble_pairs(quants, out + 16);
}

void encode_q5_k(const float* x, Out out) {
  int quants[kSuperBlock];
  quantize_eight(x, 31, quants, out);
  Out fifth = out + 16;
  std::fill(fifth, fifth + 32, std::uint8_t{0});
  for (int i = 0; i < kSuperBlock; ++i) {
    fifth[i % 32] = static_cast<std::uint8_t>(fifth[i % 32] | (quants[i] >> 4) << i / 32);
  }
  put_nibble_pairs(quants, out + 48);
}

/// The scale of each sub-block, and the half that their integers multiply, as a float.
struct SymmetricForm {
  int subs = 0;
  int steps = 0;
  int scale_steps = 0;
  Weigh weigh = Weigh::kEqually;
};
float put_scale_of_all(const float* x, const SymmetricForm& form, float* scales, Out half) {
  const int count = kSuperBlock / form.subs;
  float farthest = 0.0f;
  for (int s = 0; s < form.subs; ++s) {
    scales[s] = fit_symmetric(x + s * count, count, form.steps, form.weigh).scale;
    if (std::fabs(scales[s]) > std::fabs(farthest)) farthest = scales[s];
  }
  return put_half_of(farthest / static_cast<float>(-form.scale_steps), half);
}

void encode_q6_k(const float* x, Out out) {
  constexpr int kSubs = 16;
  float scales[kSubs];
  const float scale = put_scale_of_all(x, {.subs = kSubs, .steps = 32, .scale_steps = 128}, scales, out + 208);
  std::fill(out, out + 192, std::uint8_t{0});
  for (int s = 0; s < kSubs; ++s) {
    const int scale_quant = rounded(scales[s] * inverse_of(scale), -128, 127);
    out[192 + s] = static_cast<std::uint8_t>(scale_quant);
    const float inverse = inverse_of(scale * static_cast<float>(scale_quant));
    for (int i = s * 16; i < (s + 1) * 16; ++i) {
      const int quant = rounded(x[i] * inverse, -32, 31) + 32;
      put_bits(out + i / 128 * 64 + i % 64, quant & 15, i % 128 / 64 * 4);
      put_bits(out + 128 + i / 128 * 32 + i % 32, quant >> 4, i % 128 / 32 * 2);
    }
  }
}

/// 16 bytes of scales (low nibble) and minima, 64 of quants, scale and minimum of all.
void encode_q2_k(const float* x, Out out) {
  constexpr int kSubs = 16;
  Fit fits[kSubs];
  float scale_max = 0.0f;
  float minimum_max = 0.0f;
  for (int s = 0; s < kSubs; ++s) {
    fits[s] = fit_with_minimum(x + s * 16, 16, 3, Weigh::kByMagnitude);
    scale_max = std::max(scale_max, fits[s].scale);
    minimum_max = std::max(minimum_max, fits[s].minimum);
  }
  const float scale = put_half_of(scale_max / 15.0f, out + 80);
  const float minimum = put_half_of(minimum_max / 15.0f, out + 82);
  std::fill(out, out + 80, std::uint8_t{0});
  for (int s = 0; s < kSubs; ++s) {
    const int scale_quant = rounded(fits[s].scale * inverse_of(scale), 0, 15);
    const int minimum_quant = rounded(fits[s].minimum * inverse_of(minimum), 0, 15);
    out[s] = static_cast<std::uint8_t>(scale_quant | minimum_quant << 4);
    const float inverse = inverse_of(scale * static_cast<float>(scale_quant));
    const float below = minimum * static_cast<float>(minimum_quant);
    for (int i = s * 16; i < (s + 1) * 16; ++i) {
      put_bits(out + 16 + i / 128 * 32 + i % 32, rounded((x[i] + below) * inverse, 0, 3), i % 128 / 32 * 2);
    }
  }
}

/// 32 bytes of third bits, 64 of two low bits, 12 of scales, the scale of all.
void encode_q3_k(const float* x, Out out) {
  constexpr int kSubs = 16;
  float scales[kSubs];
  const SymmetricForm form{.subs = kSubs, .steps = 4, .scale_steps = 32, .weigh = Weigh::kBySquare};
  const float scale = put_scale_of_all(x, form, scales, out + 108);
  std::fill(out, out + 108, std::uint8_t{0});
  for (int s = 0; s < kSubs; ++s) {
    const int scale_quant = rounded(scales[s] * inverse_of(scale), -32, 31);
    put_bits(out + 96 + s % 8, (scale_quant + 32) & 15, s / 8 * 4);
    put_bits(out + 104 + s % 4, (scale_quant + 32) >> 4, s / 4 * 2);
    const float inverse = inverse_of(scale * static_cast<float>(scale_quant));
    for (int i = s * 16; i < (s + 1) * 16; ++i) {
      const int quant = rounded(x[i] * inverse, -4, 3) + 4;
      put_bits(out + 32 + i / 128 * 32 + i % 32, quant & 3, i % 128 / 32 * 2);
      put_bits(out + i % 32, quant >> 2, i / 32);
    }
  }
}

int nearest_iq4(float value) {
  const auto& values = nibble_quants(DType::kNibblesIQ4);
  std::size_t below = 0;
  for (std::size_t step = 8; step > 0; step /= 2) {
    const std::size_t at = below + step;
    if (value * 2.0f > static_cast<float>(values[at - 1] + values[at])) below = at;
  }
  return static_cast<int>(below);
}

/// The farthest value is put at either end of the grid of IQ4, and near it.
float fit_iq4(const float* x) {
  const auto& values = nibble_quants(DType::kNibblesIQ4);
  const float farthest = extremes_of(x, kQuantBlock).farthest;
  float best = 0.0f;
  double best_gain = 0.0;
  for (const int end : {values.front(), values.back()}) {
    for (int shift = -9; farthest != 0.0f && shift <= 9; ++shift) {
      const float inverse = static_cast<float>(end + shift) / farthest;
      double xq = 0.0;
      double qq = 0.0;
      for (int i = 0; i < kQuantBlock; ++i) {
        const double quant = values[static_cast<std::size_t>(nearest_iq4(x[i] * inverse))];
        xq += quant * static_cast<double>(x[i]);
        qq += quant * quant;
      }
      if (!(xq * xq > best_gain * qq)) continue;
      best_gain = xq * xq / qq;
      best = static_cast<float>(xq / qq);
    }
  }
  return best;
}

void put_iq4(const float* x, float scale, Out nibbles) {
  int quants[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) quants[i] = nearest_iq4(x[i] * inverse_of(scale));
  put_nibbles(quants, nibbles);
}

void encode_iq4_nl(const float* x, Out out) {
  put_iq4(x, put_half_of(fit_iq4(x), out), out + 2);
}

/// The scale of all, 8 x 2 high bits and 8 x 4 low bits of scales, nibbles in groups of 32.
void encode_iq4_xs(const float* x, Out out) {
  constexpr int kSubs = 8;
  float scales[kSubs];
  float farthest = 0.0f;
  for (int s = 0; s < kSubs; ++s) {
    scales[s] = fit_iq4(x + s * kQuantBlock);
    if (std::fabs(scales[s]) > std::fabs(farthest)) farthest = scales[s];
  }
  const float scale = put_half_of(farthest / -32.0f, out);
  std::fill(out + 2, out + 8, std::uint8_t{0});
  for (int s = 0; s < kSubs; ++s) {
    const int scale_quant = rounded(scales[s] * inverse_of(scale), -32, 31);
    put_bits(out + 2 + s / 4, (scale_quant + 32) >> 4, s % 4 * 2);
    put_bits(out + 4 + s / 2, (scale_quant + 32) & 15, s % 2 * 4);
    put_iq4(x + s * kQuantBlock, scale * static_cast<float>(scale_quant), out + 8 + 16 * s);
  }
}

/// The power of two that puts the farthest value between 4 and 8, where 6 is the last quant; the nearest quants, of
/// equally near ones the smaller.
void encode_mxfp4(const float* x, Out out) {
  const auto& doubled = nibble_quants(DType::kNibblesMXFP4);
  const float farthest = std::min(std::fabs(extremes_of(x, kQuantBlock).farthest), std::numeric_limits<float>::max());
  int exponent = 0;
  if (farthest > 0.0f) exponent = std::clamp(std::ilogb(farthest) - 2 + 127, 0, 254);
  const float half_scale = std::ldexp(1.0f, exponent - 128);
  int quants[kQuantBlock];
  for (int i = 0; i < kQuantBlock; ++i) {
    float nearest = std::numeric_limits<float>::infinity();
    quants[i] = 0;
    for (std::size_t q = 0; q < doubled.size(); ++q) {
      const float distance = std::fabs(static_cast<float>(doubled[q]) * half_scale - x[i]);
      if (!(distance < nearest)) continue;
      nearest = distance;
      quants[i] = static_cast<int>(q);
    }
  }
  out[0] = static_cast<std::uint8_t>(exponent);
  put_nibbles(quants, out + 1);
}

using Encoder = void (*)(const float* x, Out out);

Encoder encoder_of(DType type) {
  switch (type) {
    case DType::kQ4_1:
      return encode_q4_1;
    case DType::kQ5_0:
      return encode_q5_0;
    case DType::kQ5_1:
      return encode_q5_1;
    case DType::kQ2_K:
      return encode_q2_k;
    case DType::kQ3_K:
      return encode_q3_k;
    case DType::kQ4_K:
      return encode_q4_k;
    case DType::kQ5_K:
      return encode_q5_k;
    case DType::kQ6_K:
      return encode_q6_k;
    case DType::kIQ4_NL:
      return encode_iq4_nl;
    case DType::kIQ4_XS:
      return encode_iq4_xs;
    case DType::kMXFP4:
      return encode_mxfp4;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_encode_sub_blocks(DType type) {
  return encoder_of(type) != nullptr;
}

void encode_sub_blocks(DType type, std::span<const float> values, MutableByteSpan out) {
  const Encoder encode = encoder_of(type);
  BF_CHECK(encode != nullptr, "a type with an encoder");
  const auto elements = static_cast<std::size_t>(block_elements(type));
  const auto stored = static_cast<std::size_t>(block_bytes(type));
  for (std::size_t b = 0; b < values.size() / elements; ++b) {
    encode(values.data() + b * elements, reinterpret_cast<Out>(out.data() + b * stored));
  }
}

}  // namespace butterfly
