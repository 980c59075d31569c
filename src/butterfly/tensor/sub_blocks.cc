#include "butterfly/tensor/sub_blocks.h"

#include <cstring>

#include "butterfly/base/check.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

constexpr std::array<std::int8_t, 16> kIdentity{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr std::array<std::int8_t, 16> kCentred{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<std::int8_t, 16> kIq4{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::array<std::int8_t, 16> kMxfp4{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// A stored block taken apart. Sub-blocks are those of the computing type; `codes` are its bytes or nibbles. Types of
/// super-blocks have their factors in `super`, the others their scales and minima.
struct Block {
  float scales[kSuperBlock / 16];
  float minima[kSuperBlock / 16];
  SuperBlockFactors super;
  std::uint8_t codes[kSuperBlock];
};

using Bytes = const std::uint8_t*;

std::uint16_t half_at(Bytes at) {
  std::uint16_t half = 0;
  std::memcpy(&half, at, 2);
  return half;
}
float float_at(Bytes at) {
  return half_to_float(half_at(at));
}

constexpr std::uint64_t kEachByte = 0x0101010101010101u;

std::uint64_t eight_at(Bytes at) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, at, 8);
  return bytes;
}
void put_eight(std::uint8_t* at, std::uint64_t bytes) {
  std::memcpy(at, &bytes, 8);
}

/// codes[i] = in[i] >> shift & mask; no bit of the mask is one that comes from the next byte.
void take_bits(Bytes in, int count, int shift, std::uint64_t mask, std::uint8_t* codes) {
  for (int i = 0; i < count; i += 8) put_eight(codes + i, eight_at(in + i) >> shift & mask * kEachByte);
}

/// codes[i] |= (in[i] >> shift & mask) << 4, of 32.
void add_high_bits(Bytes in, int shift, std::uint64_t mask, std::uint8_t* codes) {
  for (int i = 0; i < kQuantBlock; i += 8) {
    put_eight(codes + i, eight_at(codes + i) | (eight_at(in + i) >> shift & mask * kEachByte) << 4);
  }
}

/// codes[i] -= by, of 32, which stay above -128.
void subtract(std::uint64_t by, std::uint8_t* codes) {
  constexpr std::uint64_t kSigns = 128 * kEachByte;
  for (int i = 0; i < kQuantBlock; i += 8) {
    put_eight(codes + i, ((eight_at(codes + i) | kSigns) - by * kEachByte) ^ kSigns);
  }
}

/// 16 bytes: low nibbles are elements 0..15, high ones 16..31.
void split_nibbles(Bytes quants, std::uint8_t* codes) {
  take_bits(quants, 16, 0, 15, codes);
  take_bits(quants, 16, 4, 15, codes + 16);
}

/// A bit for each of 32 codes.
void add_fifth_bits(Bytes bits, std::uint8_t* codes) {
  constexpr std::uint64_t kOneOfEach = 0x8040201008040201u;
  for (int i = 0; i < kQuantBlock; i += 8) {
    const std::uint64_t chosen = bits[i / 8] * kEachByte & kOneOfEach;
    const std::uint64_t ones = (chosen + 127 * kEachByte) >> 7 & kEachByte;
    put_eight(codes + i, eight_at(codes + i) | ones << 4);
  }
}

void take_q4_1(Bytes in, Block& block) {
  block.scales[0] = float_at(in);
  block.minima[0] = -float_at(in + 2);
  split_nibbles(in + 4, block.codes);
}

void take_q5_0(Bytes in, Block& block) {
  block.scales[0] = float_at(in);
  split_nibbles(in + 6, block.codes);
  add_fifth_bits(in + 2, block.codes);
  subtract(16, block.codes);
}

void take_q5_1(Bytes in, Block& block) {
  block.scales[0] = float_at(in);
  block.minima[0] = -float_at(in + 2);
  split_nibbles(in + 8, block.codes);
  add_fifth_bits(in + 4, block.codes);
}

/// 64 bytes: each 32 of them have the two low bits of four blocks.
void take_low_bits(Bytes in, Block& block) {
  for (int b = 0; b < 8; ++b) take_bits(in + b / 4 * 32, 32, b % 4 * 2, 3, block.codes + 32 * b);
}

/// 16 bytes of scales (low nibble) and minima, 64 of quants, scale and minimum of all.
void take_q2_k(Bytes in, Block& block) {
  block.super.scale = half_at(in + 80);
  block.super.minimum = half_at(in + 82);
  for (int s = 0; s < 16; ++s) {
    block.super.scales[s] = static_cast<std::int8_t>(in[s] & 15);
    block.super.minima[s] = static_cast<std::int8_t>(in[s] >> 4);
  }
  take_low_bits(in + 16, block);
}

/// 32 bytes of third bits, 64 of two low bits, 12 of scales, the scale of all.
void take_q3_k(Bytes in, Block& block) {
  Bytes scales = in + 96;
  block.super.scale = half_at(in + 108);
  for (int s = 0; s < 16; ++s) {
    const int low = scales[s % 8] >> (s / 8 * 4) & 15;
    const int high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
    block.super.scales[s] = static_cast<std::int8_t>((low | high << 4) - 32);
  }
  take_low_bits(in + 32, block);
  for (int i = 0; i < kSuperBlock; i += 8) {  // low, or low - 4, in nibbles of kCentred
    const std::uint64_t high = eight_at(in + i % 32) >> (i / 32) & kEachByte;
    put_eight(block.codes + i, (eight_at(block.codes + i) | 4 * kEachByte) + high * 4);
  }
}

/// Eight scales and eight minima of 6 bits each in 12 bytes.
void take_scales_and_minima(Bytes in, Block& block) {
  block.super.scale = half_at(in);
  block.super.minimum = half_at(in + 2);
  Bytes packed = in + 4;
  for (int s = 0; s < 8; ++s) {
    const int at = s % 4;
    const bool first = s < 4;
    const int quant_scale = first ? packed[at] & 63 : (packed[8 + at] & 15) | (packed[at] >> 2 & 48);
    const int quant_min = first ? packed[4 + at] & 63 : packed[8 + at] >> 4 | (packed[4 + at] >> 2 & 48);
    block.super.scales[s] = static_cast<std::int8_t>(quant_scale);
    block.super.minima[s] = static_cast<std::int8_t>(quant_min);
  }
}

/// Pairs of 32 elements share 32 bytes: low nibbles first.
void take_nibbles(Bytes quants, Block& block) {
  for (int b = 0; b < 8; ++b) take_bits(quants + b / 2 * 32, 32, b % 2 * 4, 15, block.codes + 32 * b);
}

void take_q4_k(Bytes in, Block& block) {
  take_scales_and_minima(in, block);
  take_nibbles(in + 16, block);
}

void take_q5_k(Bytes in, Block& block) {
  take_scales_and_minima(in, block);
  take_nibbles(in + 48, block);
  for (int b = 0; b < 8; ++b) add_high_bits(in + 16, b, 1, block.codes + 32 * b);
}

/// 128 bytes of four low bits, 64 of two high bits, 16 signed scales, the scale of all.
void take_q6_k(Bytes in, Block& block) {
  Bytes high = in + 128;
  block.super.scale = half_at(in + 208);
  for (int s = 0; s < 16; ++s) block.super.scales[s] = static_cast<std::int8_t>(in[192 + s]);
  for (int b = 0; b < 8; ++b) {
    std::uint8_t* codes = block.codes + 32 * b;
    take_bits(in + b / 4 * 64 + b % 2 * 32, 32, b % 4 / 2 * 4, 15, codes);
    add_high_bits(high + b / 4 * 32, b % 4 * 2, 3, codes);
    subtract(32, codes);
  }
}

void take_iq4_nl(Bytes in, Block& block) {
  block.scales[0] = float_at(in);
  split_nibbles(in + 2, block.codes);
}

/// The scale of all, 8 x 2 high bits and 8 x 4 low bits of scales, nibbles in groups of 32.
void take_iq4_xs(Bytes in, Block& block) {
  block.super.scale = half_at(in);
  const int high = half_at(in + 2);
  for (int s = 0; s < 8; ++s) {
    const int low_bits = in[4 + s / 2] >> (s % 2 * 4) & 15;
    block.super.scales[s] = static_cast<std::int8_t>((low_bits | (high >> 2 * s & 3) << 4) - 32);
    split_nibbles(in + 8 + 16 * s, block.codes + 32 * s);
  }
}

/// An exponent for half of the value, since the quants are doubled: 2^(e - 128).
void take_mxfp4(Bytes in, Block& block) {
  const std::uint32_t bits = in[0] < 2 ? 0x00200000u << in[0] : static_cast<std::uint32_t>(in[0] - 1) << 23;
  std::memcpy(&block.scales[0], &bits, 4);
  split_nibbles(in + 1, block.codes);
}

void take(DType type, const std::byte* bytes, Block& block) {
  const auto* in = reinterpret_cast<Bytes>(bytes);
  switch (type) {
    case DType::kQ4_1:
      return take_q4_1(in, block);
    case DType::kQ5_0:
      return take_q5_0(in, block);
    case DType::kQ5_1:
      return take_q5_1(in, block);
    case DType::kQ2_K:
      return take_q2_k(in, block);
    case DType::kQ3_K:
      return take_q3_k(in, block);
    case DType::kQ4_K:
      return take_q4_k(in, block);
    case DType::kQ5_K:
      return take_q5_k(in, block);
    case DType::kQ6_K:
      return take_q6_k(in, block);
    case DType::kIQ4_NL:
      return take_iq4_nl(in, block);
    case DType::kIQ4_XS:
      return take_iq4_xs(in, block);
    case DType::kMXFP4:
      return take_mxfp4(in, block);
    default:
      BF_CHECK(false, "a type that is computed as another");
  }
}

void multiply_factors(DType type, Block& block) {
  const SubBlockForm form = sub_block_form(computing_type(type));
  const float scale = half_to_float(block.super.scale);
  const float minimum = half_to_float(block.super.minimum);
  for (int s = 0; s < kSuperBlock / form.size; ++s) {
    block.scales[s] = scale * static_cast<float>(block.super.scales[s]);
    if (form.minima) block.minima[s] = minimum * static_cast<float>(block.super.minima[s]);
  }
}

/// Elements [32 b, 32 b + 32) of a block, in the layout of its computing type.
void put(DType computing, int half_scale, const Block& block, int b, std::byte* out) {
  const std::uint8_t* codes = block.codes + b * kQuantBlock;
  if (computing == DType::kQ8_0) {
    BlockQ8_0 q8;
    q8.scale = static_cast<std::uint16_t>(half_scale);
    std::memcpy(q8.quants, codes, kQuantBlock);
    std::memcpy(out, &q8, sizeof(q8));
    return;
  }
  const SubBlockForm form = sub_block_form(computing);
  const auto floats = static_cast<std::size_t>(form.subs()) * sizeof(float);
  std::memcpy(out, block.scales + b * form.subs(), floats);
  if (form.minima) std::memcpy(out + floats, block.minima + b * form.subs(), floats);
  out += form.float_bytes();
  if (!form.nibbles) {
    std::memcpy(out, codes, kQuantBlock);
    return;
  }
  for (int i = 0; i < 16; i += 8) {
    const std::uint64_t nibbles = eight_at(codes + i) | eight_at(codes + i + 16) << 4;
    std::memcpy(out + i, &nibbles, 8);
  }
}

void decode_computing_row(DType type, ByteSpan bytes, std::span<float> out) {
  const SubBlockForm form = sub_block_form(type);
  const std::array<std::int8_t, 16>& table = nibble_quants(type);
  const auto step = static_cast<std::size_t>(block_bytes(type));
  for (std::size_t b = 0; b < out.size() / kQuantBlock; ++b) {
    const std::byte* at = bytes.data() + b * step;
    float floats[4] = {};
    std::memcpy(floats, at, static_cast<std::size_t>(form.float_bytes()));
    const auto* codes = reinterpret_cast<const std::uint8_t*>(at + form.float_bytes());
    for (int i = 0; i < kQuantBlock; ++i) {
      const int nibble = i < 16 ? codes[i % 16] & 15 : codes[i % 16] >> 4;
      const int quant = form.nibbles ? table[static_cast<std::size_t>(nibble)] : static_cast<std::int8_t>(codes[i]);
      const int sub = i / form.size;
      float value = floats[sub] * static_cast<float>(quant);
      if (form.minima) value = value - floats[form.subs() + sub];
      out[b * kQuantBlock + static_cast<std::size_t>(i)] = value;
    }
  }
}

}  // namespace

const std::array<std::int8_t, 16>& nibble_quants(DType type) {
  switch (type) {
    case DType::kNibbles16:
      return kCentred;
    case DType::kNibblesIQ4:
      return kIq4;
    case DType::kNibblesMXFP4:
      return kMxfp4;
    default:
      return kIdentity;
  }
}

void take_super_block(DType type, ByteSpan stored, SuperBlockFactors& factors, std::span<std::uint8_t> codes) {
  BF_CHECK(has_shared_scales(type) && stored.size() == static_cast<std::size_t>(block_bytes(type)), "a super-block");
  Block block;
  take(type, stored.data(), block);
  factors = block.super;
  std::memcpy(codes.data(), block.codes, kSuperBlock);
}

void to_computing_type(DType type, ByteSpan row, const IndexRange& cols, MutableByteSpan out) {
  const DType computing = computing_type(type);
  const auto size = static_cast<std::uint64_t>(cols.size());
  BF_CHECK(cols.begin % kQuantBlock == 0 && row_bytes(computing, size) == out.size(), "whole blocks");
  const std::int64_t elements = block_elements(type);
  const auto stored = static_cast<std::int64_t>(block_bytes(type));
  if (computing == type) {
    if (!out.empty()) std::memcpy(out.data(), row.data() + cols.begin / elements * stored, out.size());
    return;
  }
  std::byte* to = out.data();
  Block block;
  for (std::int64_t first = cols.begin / elements * elements; first < cols.end; first += elements) {
    const std::byte* from = row.data() + first / elements * stored;
    take(type, from, block);
    if (has_shared_scales(type)) multiply_factors(type, block);
    const int half_scale = half_at(reinterpret_cast<Bytes>(from));
    for (std::int64_t k = first; k < first + elements; k += kQuantBlock) {
      if (!cols.contains(k)) continue;
      put(computing, half_scale, block, static_cast<int>((k - first) / kQuantBlock), to);
      to += block_bytes(computing);
    }
  }
}

void decode_sub_blocks(DType type, ByteSpan bytes, std::span<float> out) {
  if (has_sub_blocks(type)) return decode_computing_row(type, bytes, out);
  const DType computing = computing_type(type);
  const auto elements = static_cast<std::size_t>(block_elements(type));
  const auto stored = static_cast<std::size_t>(block_bytes(type));
  std::array<std::byte, kSuperBlock / kQuantBlock * 40> memory;
  const auto whole = MutableByteSpan(memory).first(*row_bytes(computing, elements));
  for (std::size_t b = 0; b < out.size() / elements; ++b) {
    to_computing_type(type, bytes.subspan(b * stored, stored), {0, static_cast<std::int64_t>(elements)}, whole);
    const std::span<float> values = out.subspan(b * elements, elements);
    if (has_sub_blocks(computing)) {
      decode_computing_row(computing, whole, values);
      continue;
    }
    BlockQ8_0 q8;
    std::memcpy(&q8, whole.data(), sizeof(q8));
    const float scale = half_to_float(q8.scale);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale * static_cast<float>(q8.quants[i]);
  }
}

}  // namespace butterfly
