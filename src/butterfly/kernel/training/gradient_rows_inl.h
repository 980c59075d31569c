// The loops behind gradient_rows.h, compiled once for each instruction set by files that include this: plain code that
// compilers turn into vectors. Everything is static (gradient_rows.h says why). Not included elsewhere.
#pragma once

#include "butterfly/kernel/training/gradient_rows.h"

namespace butterfly {
namespace {

constexpr unsigned kMagnitude = 0x7fffffffU;
constexpr unsigned kInfinityBits = 0x7f800000U;
constexpr float kBlockMin = 0x1p-100F;   // below it 1 / scale would leave the range of a float
constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it leaves no bits behind the point

inline unsigned bits_of(float value) {
  return __builtin_bit_cast(unsigned, value);
}

inline float float_of(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}

inline float finite_or_zero(float value) {
  return (bits_of(value) & kMagnitude) < kInfinityBits ? value : 0.0F;
}

inline void store_bf16(unsigned bits, unsigned char* out) {
  const auto half = static_cast<unsigned short>(bits >> 16);
  __builtin_memcpy(out, &half, sizeof(half));
}

inline float load_bf16(const unsigned char* in) {
  unsigned short half = 0;
  __builtin_memcpy(&half, in, sizeof(half));
  return float_of(static_cast<unsigned>(half) << 16);
}

void encode_bf16(const float* g, float* __restrict e, long n, unsigned char* __restrict out) {
  for (long i = 0; i < n; ++i) {
    const float x = g[i] + e[i];
    const unsigned bits = bits_of(x);
    const unsigned rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const unsigned kept =
        (bits & kMagnitude) < kInfinityBits ? rounded : bits | ((bits & 0xffffU) != 0 ? 0x400000U : 0U);
    store_bf16(kept, out + 2 * i);
    e[i] = finite_or_zero(x - float_of(kept & 0xffff0000U));
  }
}

void decode_bf16(const unsigned char* in, long n, float* __restrict y) {
  for (long i = 0; i < n; ++i) y[i] = load_bf16(in + 2 * i);
}

inline void encode_block(const float* g, float* __restrict e, long n, unsigned char* __restrict out) {
  int largest = 0;  // magnitudes of floats are ordered as their bits are
  for (long i = 0; i < n; ++i) {
    e[i] = g[i] + e[i];
    const auto magnitude = static_cast<int>(bits_of(e[i]) & kMagnitude);
    largest = magnitude > largest ? magnitude : largest;
  }
  if (static_cast<unsigned>(largest) >= kInfinityBits) {  // nothing of it can be sent but that it is so
    store_bf16(0x7fc00000U, out);
    for (long i = 0; i < n; ++i) {
      out[2 + i] = 1;
      e[i] = 0.0F;
    }
    return;
  }
  const float most = float_of(static_cast<unsigned>(largest));
  const bool sent = most >= kBlockMin;
  const float scale = sent ? float_of((bits_of(most * (1.0F / 127.0F)) + 0xffffU) & 0xffff0000U) : 0.0F;
  const float inverse = sent ? 1.0F / scale : 0.0F;
  store_bf16(bits_of(scale), out);
  for (long i = 0; i < n; ++i) {
    const float quant = (e[i] * inverse + kRounder) - kRounder;
    out[2 + i] = static_cast<unsigned char>(static_cast<signed char>(static_cast<int>(quant)));
    e[i] = e[i] - quant * scale;
  }
}

void encode_int8(const float* g, float* e, long n, unsigned char* out) {
  for (; n >= kGradientBlock; n -= kGradientBlock) {
    encode_block(g, e, kGradientBlock, out);
    g += kGradientBlock;
    e += kGradientBlock;
    out += 2 + kGradientBlock;
  }
  if (n > 0) encode_block(g, e, n, out);
}

void decode_int8(const unsigned char* in, long n, float* __restrict y) {
  for (long begin = 0; begin < n; begin += kGradientBlock) {
    const long size = n - begin < kGradientBlock ? n - begin : kGradientBlock;
    const float scale = load_bf16(in);
    for (long i = 0; i < size; ++i) y[begin + i] = static_cast<float>(static_cast<signed char>(in[2 + i])) * scale;
    in += 2 + size;
  }
}

}  // namespace
}  // namespace butterfly
