// Elementwise kernels as plain scalar code, compiled once per instruction set: the compiler may vectorise them, the
// bits stay, since every operation is exactly rounded and nothing is reassociated or contracted.
// Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {
namespace {

inline unsigned bits_of(float x) {
  return __builtin_bit_cast(unsigned, x);
}
inline float float_of(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2, Taylor to r^7 (error below 1e-8); ln 2 in two parts.
constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2High = 0x1.62e400p-1f;
constexpr float kLn2Low = 0x1.7f7d1cp-20f;
// Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
constexpr float kRoundMagic = 12582912.0f;
constexpr float kExpLowest = -86.0f;  // below: 0; keeps 2^n * exp(r) normal
constexpr float kExpHighest = 88.0f;
constexpr float kExpC[8] = {1.0f, 1.0f, 0.5f, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040};

inline float exp_scalar(float x) {
  const float clamped = x < kExpHighest ? x : kExpHighest;
  const float t = __builtin_fmaf(clamped, kLog2E, kRoundMagic);
  const float n = t - kRoundMagic;
  float r = __builtin_fmaf(n, -kLn2High, clamped);
  r = __builtin_fmaf(n, -kLn2Low, r);
  float p = kExpC[7];
  p = __builtin_fmaf(p, r, kExpC[6]);
  p = __builtin_fmaf(p, r, kExpC[5]);
  p = __builtin_fmaf(p, r, kExpC[4]);
  p = __builtin_fmaf(p, r, kExpC[3]);
  p = __builtin_fmaf(p, r, kExpC[2]);
  p = __builtin_fmaf(p, r, kExpC[1]);
  p = __builtin_fmaf(p, r, kExpC[0]);
  const float value = float_of(bits_of(p) + (bits_of(t) << 23));
  return x < kExpLowest ? 0.0f : value;
}

inline float silu_scalar(float x) {
  return x / (1.0f + exp_scalar(-x));
}

// 0.5 x (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), tanh(u) = 1 - 2 / (1 + exp(2u)).
// https://arxiv.org/abs/1606.08415
inline float gelu_scalar(float x) {
  const float cubic = __builtin_fmaf(0.044715f * x * x, x, x);
  const float tanh_u = 1.0f - 2.0f / (1.0f + exp_scalar(2.0f * 0.7978845608028654f * cubic));
  return 0.5f * x * (1.0f + tanh_u);
}

// The Pade approximant of order [7/6] below 1, where 1 - 2 / (1 + exp(2x)) cancels. NaN stays NaN.
inline float tanh_scalar(float x) {
  const float square = x * x;
  const float above = __builtin_fmaf(__builtin_fmaf(square + 378.0f, square, 17325.0f), square, 135135.0f) * x;
  const float below =
      __builtin_fmaf(__builtin_fmaf(__builtin_fmaf(28.0f, square, 3150.0f), square, 62370.0f), square, 135135.0f);
  const float magnitude = x < 0.0f ? -x : x;
  const float large = 1.0f - 2.0f / (1.0f + exp_scalar(2.0f * magnitude));
  const float near = above / below;
  const float far = x < 0.0f ? -large : large;
  return magnitude >= 1.0f ? far : near;
}

// Abramowitz and Stegun 7.1.26 for erfc(|x| / sqrt 2).
inline float gelu_erf_scalar(float x) {
  const float z = (x < 0.0f ? -x : x) * 0.70710678f;
  const float t = 1.0f / __builtin_fmaf(0.3275911f, z, 1.0f);
  float p = __builtin_fmaf(1.061405429f, t, -1.453152027f);
  p = __builtin_fmaf(p, t, 1.421413741f);
  p = __builtin_fmaf(p, t, -0.284496736f);
  p = __builtin_fmaf(p, t, 0.254829592f);
  const float half_erfc = 0.5f * (p * t) * exp_scalar(-(z * z));
  return x * (x < 0.0f ? half_erfc : 1.0f - half_erfc);
}

inline float clamped_swiglu_scalar(float gate, float up, float limit) {
  const float g = gate > limit ? limit : gate;
  const float low = up < -limit ? -limit : up;
  const float u = low > limit ? limit : low;
  return g / (1.0f + exp_scalar(-1.702f * g)) * (u + 1.0f);
}

/// The score of `key` after scaling: cap, slope, bias.
inline float adjust_score(const AttentionArgs& a, int row, int key, float score) {
  if (a.cap != 0.0f) score = a.cap * tanh_scalar(score / a.cap);
  if (a.slopes != nullptr) score = __builtin_fmaf(a.slopes[row], static_cast<float>(key + 1 - a.visible[row]), score);
  if (a.biases != nullptr) score = score + a.biases[row][key];
  return score;
}

/// Adds a row's sink to its normaliser; returns what the values are multiplied with.
inline float add_sink(const AttentionArgs& a, int row, float max, float* sum) {
  if (a.sinks == nullptr) return 1.0f;
  const float sink = a.sinks[row];
  const float new_max = sink > max ? sink : max;
  const float keep = exp_scalar(max - new_max);
  *sum = __builtin_fmaf(*sum, keep, exp_scalar(sink - new_max));
  return keep;
}

// Nearest half, ties to even (see tensor/half.h, whose header would bring standard ones along).
inline unsigned short half_of(float value) {
  const unsigned bits = bits_of(value);
  const unsigned sign = (bits >> 16) & 0x8000u;
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<unsigned short>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    return static_cast<unsigned short>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<unsigned short>(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

void rope_row(float* x, const float* cos, const float* sin, long pairs, bool adjacent) {
  const long step = adjacent ? 2 : 1;
  const long partner = adjacent ? 1 : pairs;
  for (long i = 0; i < pairs; ++i) {
    float* a = x + i * step;
    const float first = a[0];
    const float second = a[partner];
    a[0] = __builtin_fmaf(first, cos[i], -(second * sin[i]));
    a[partner] = __builtin_fmaf(first, sin[i], second * cos[i]);
  }
}

void silu_mul_row(const float* gate, const float* up, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = silu_scalar(gate[i]) * up[i];
}
void gelu_mul_row(const float* gate, const float* up, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = gelu_scalar(gate[i]) * up[i];
}
void silu_row(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = silu_scalar(x[i]);
}
void gelu_row(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = gelu_scalar(x[i]);
}
void gelu_erf_row(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = gelu_erf_scalar(x[i]);
}
void gelu_erf_mul_row(const float* gate, const float* up, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = gelu_erf_scalar(gate[i]) * up[i];
}
// NaN stays NaN.
void relu_row(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}
void clamped_swiglu_row(const float* gate, const float* up, float limit, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = clamped_swiglu_scalar(gate[i], up[i], limit);
}
void scale_row(float factor, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = y[i] * factor;
}
void soft_cap_row(float cap, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = cap * tanh_scalar(y[i] / cap);
}
void add_row(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = y[i] + x[i];
}

void add_scaled_row(float factor, const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = __builtin_fmaf(factor, x[i], y[i]);
}
void sigmoid_row(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = 1.0f / (1.0f + exp_scalar(-x[i]));
}
void softmax_row(const float* x, long n, float* y) {
  float max = x[0];
  for (long i = 1; i < n; ++i) max = x[i] > max ? x[i] : max;
  for (long i = 0; i < n; ++i) y[i] = exp_scalar(x[i] - max);
  float sums[kPanel] = {};
  for (long i = 0; i < n; ++i) sums[i % kPanel] = sums[i % kPanel] + y[i];
  for (int width = kPanel / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] = sums[i] + sums[i + width];
  }
  for (long i = 0; i < n; ++i) y[i] = y[i] / sums[0];
}

template <int kStep>
void store_cached(const float* x, long n, bool half, unsigned char* out) {
  if (half) {
    auto* halves = reinterpret_cast<unsigned short*>(out);
    // Saturated: an infinite value would turn into NaN where masked keys are multiplied by zero.
    for (long i = 0; i < n; ++i) {
      const float low = x[i] < -65504.0f ? -65504.0f : x[i];
      halves[i * kStep] = half_of(low > 65504.0f ? 65504.0f : low);
    }
  } else {
    auto* floats = reinterpret_cast<float*>(out);
    for (long i = 0; i < n; ++i) floats[i * kStep] = x[i];
  }
}

/// Where the blocks of one q8_0 key or value lie in the cache.
struct CachedBlocks {
  unsigned char* quants;
  long step;  // bytes from one to the next
  unsigned char* scales;
  long scale_step;
};

inline CachedBlocks blocks_of_key(long n, unsigned char* group, int key) {
  return {group + key, kPanel, group + n * kPanel + 2 * key, 2 * kPanel};
}

inline CachedBlocks blocks_of_value(long n, unsigned char* page, int token) {
  const long stride = value_stride_of(n);
  return {page + token * stride, 1, page + kKvPageTokens * stride + 2 * token, 2 * kKvPageTokens};
}

/// `encode`: Kernels::floats_to_q8_0.
void store_cached_blocks(const float* x, long n, void (*encode)(const float*, long, unsigned char*),
                         CachedBlocks blocks) {
  for (long begin = 0; begin < n; begin += kCacheBlock) {
    const long count = n - begin < kCacheBlock ? n - begin : kCacheBlock;
    float bounded[kCacheBlock] = {};
    bool numbers = true;
    for (long i = 0; i < count; ++i) {
      const float low = x[begin + i] < -65504.0f ? -65504.0f : x[begin + i];
      bounded[i] = low > 65504.0f ? 65504.0f : low;
      numbers = numbers && low == low;
    }
    unsigned char block[2 + kCacheBlock];
    encode(bounded, kCacheBlock, block);
    constexpr unsigned short kNotANumber = 0x7e00;
    __builtin_memcpy(blocks.scales, numbers ? static_cast<const void*>(block) : &kNotANumber, 2);
    for (long i = 0; i < count; ++i) blocks.quants[(begin + i) * blocks.step] = block[2 + i];
    blocks.scales += blocks.scale_step;
  }
}

// The slice tree on tiles of `count` floats: adds present neighbours in place, returns the tile that holds the sum.
inline float* fold_slices(float** tiles, int slices, long count) {
  for (int width = 1; width < slices; width *= 2) {
    for (int i = 0; i < slices; i += 2 * width) {
      float* left = tiles[i];
      const float* right = tiles[i + width];
      if (left == nullptr) {
        tiles[i] = tiles[i + width];
      } else if (right != nullptr) {
        for (long e = 0; e < count; ++e) left[e] = left[e] + right[e];
      }
    }
  }
  return tiles[0];
}

void fold_row(float* const* sums, long n, const float* bias, const float* residual, float* y) {
  constexpr long kTile = 128;  // kReductionSlices rows of it stay in the first-level cache
  for (long at = 0; at < n; at += kTile) {
    const long count = n - at < kTile ? n - at : kTile;
    float* tiles[kReductionSlices];
    for (int slice = 0; slice < kReductionSlices; ++slice)
      tiles[slice] = sums[slice] != nullptr ? sums[slice] + at : nullptr;
    float* sum = fold_slices(tiles, kReductionSlices, count);
    if (bias != nullptr) {
      for (long i = 0; i < count; ++i) sum[i] = sum[i] + bias[at + i];
    }
    if (residual == nullptr) {
      for (long i = 0; i < count; ++i) y[at + i] = sum[i];
    } else {
      for (long i = 0; i < count; ++i) y[at + i] = residual[at + i] + sum[i];
    }
  }
}

}  // namespace
}  // namespace butterfly
