#include "butterfly/tensor/quantize.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

/// `value` as an integer of [low, high]; NaN gives 0 where the range allows it.
int to_int(float value, int low, int high) {
  if (std::isnan(value)) return std::clamp(0, low, high);
  return static_cast<int>(std::clamp(value, static_cast<float>(low), static_cast<float>(high)));
}

BlockQ8_0 encode_q8_0(const float* x) {
  float largest = 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  BlockQ8_0 block;
  block.scale = float_to_half(scale);
  for (int i = 0; i < kQuantBlock; ++i) {
    block.quants[i] = static_cast<std::int8_t>(to_int(std::round(x[i] * inverse), -127, 127));
  }
  return block;
}

/// Blocks with the scale of the whole row, rounded before it divides: it is as good for the values as it can be.
void encode_int8(std::span<const float> values, MutableByteSpan out) {
  float largest = 0.0f;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  BlockQ8_0 block;
  block.scale = float_to_half(largest / 127.0f);
  const float scale = half_to_float(block.scale);
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (std::size_t b = 0; b < values.size() / kQuantBlock; ++b) {
    for (std::size_t i = 0; i < kQuantBlock; ++i) {
      block.quants[i] = static_cast<std::int8_t>(to_int(std::round(values[b * kQuantBlock + i] * inverse), -127, 127));
    }
    std::memcpy(out.data() + b * sizeof(block), &block, sizeof(block));
  }
}

BlockQ4_0 encode_q4_0(const float* x) {
  float magnitude = 0.0f;
  float extreme = 0.0f;
  for (int i = 0; i < kQuantBlock; ++i) {
    if (std::fabs(x[i]) > magnitude) {
      magnitude = std::fabs(x[i]);
      extreme = x[i];
    }
  }
  const float scale = extreme / -8.0f;
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  const auto quant = [&](float value) { return to_int(value * inverse + 8.5f, 0, 15); };
  BlockQ4_0 block;
  block.scale = float_to_half(scale);
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    block.quants[i] = static_cast<std::uint8_t>(quant(x[i]) | quant(x[i + kQuantBlock / 2]) << 4);
  }
  return block;
}

template <typename Block, typename Encode>
void encode_blocks(std::span<const float> values, MutableByteSpan out, Encode encode) {
  for (std::size_t b = 0; b < values.size() / kQuantBlock; ++b) {
    const Block block = encode(values.data() + b * kQuantBlock);
    std::memcpy(out.data() + b * sizeof(Block), &block, sizeof(Block));
  }
}

template <typename Encode>
void encode_halves(std::span<const float> values, MutableByteSpan out, Encode encode) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = encode(values[i]);
    std::memcpy(out.data() + 2 * i, &half, 2);
  }
}

template <typename Decode>
void decode_halves(ByteSpan bytes, std::span<float> out, Decode decode) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    out[i] = decode(half);
  }
}

void decode_q8_0(ByteSpan bytes, std::span<float> out) {
  for (std::size_t b = 0; b < out.size() / kQuantBlock; ++b) {
    BlockQ8_0 block;
    std::memcpy(&block, bytes.data() + b * sizeof(block), sizeof(block));
    const float scale = half_to_float(block.scale);
    for (std::size_t i = 0; i < kQuantBlock; ++i)
      out[b * kQuantBlock + i] = scale * static_cast<float>(block.quants[i]);
  }
}

void decode_q4_0(ByteSpan bytes, std::span<float> out) {
  for (std::size_t b = 0; b < out.size() / kQuantBlock; ++b) {
    BlockQ4_0 block;
    std::memcpy(&block, bytes.data() + b * sizeof(block), sizeof(block));
    const float scale = half_to_float(block.scale);
    float* values = out.data() + b * kQuantBlock;
    for (int i = 0; i < kQuantBlock / 2; ++i) {
      values[i] = scale * static_cast<float>((block.quants[i] & 15) - 8);
      values[i + kQuantBlock / 2] = scale * static_cast<float>((block.quants[i] >> 4) - 8);
    }
  }
}

void check_sizes(DType type, std::size_t elements, std::size_t bytes) {
  BF_CHECK(type != DType::kI32);
  const auto needed = row_bytes(type, elements);
  BF_CHECK(needed && *needed == bytes);
}

}  // namespace

void encode_row(DType type, std::span<const float> values, MutableByteSpan out) {
  check_sizes(type, values.size(), out.size());
  switch (type) {
    case DType::kF32:
      if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
      return;
    case DType::kF16:
      return encode_halves(values, out, float_to_half);
    case DType::kBF16:
      return encode_halves(values, out, float_to_bfloat16);
    case DType::kQ8_0:
      return encode_blocks<BlockQ8_0>(values, out, encode_q8_0);
    case DType::kQ4_0:
      return encode_blocks<BlockQ4_0>(values, out, encode_q4_0);
    case DType::kInt8:
      return encode_int8(values, out);
    default:
      return encode_sub_blocks(type, values, out);
  }
}

void decode_row(DType type, ByteSpan bytes, std::span<float> out) {
  check_sizes(type, out.size(), bytes.size());
  switch (type) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case DType::kF16:
      return decode_halves(bytes, out, half_to_float);
    case DType::kBF16:
      return decode_halves(bytes, out, bfloat16_to_float);
    case DType::kQ8_0:
    case DType::kInt8:
      return decode_q8_0(bytes, out);
    case DType::kQ4_0:
      return decode_q4_0(bytes, out);
    default:
      return decode_sub_blocks(type, bytes, out);
  }
}

bool can_encode(DType type) {
  return block_elements(type) == 1
             ? type != DType::kI32
             : type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kInt8 || can_encode_sub_blocks(type);
}

std::string encodable_types() {
  std::vector<std::string_view> names;
  for (DType type : kAllDTypes) {
    if (can_encode(type)) names.push_back(to_string(type));
  }
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

float largest_value(DType type) {
  constexpr float kLargestHalf = 65504.0f;
  switch (type) {
    case DType::kF16:
      return kLargestHalf;
    case DType::kBF16:
      return bfloat16_to_float(0x7f7f);
    case DType::kQ8_0:
    case DType::kInt8:
      return kLargestHalf * 127.0f;
    case DType::kQ4_0:
      return kLargestHalf * 8.0f;
    case DType::kQ4_1:
    case DType::kQ5_1:
      return kLargestHalf;
    case DType::kQ5_0:
      return kLargestHalf * 16.0f;
    case DType::kQ2_K:
      return kLargestHalf * 8.0f;
    case DType::kIQ4_NL:
    case DType::kQ3_K:
    case DType::kIQ4_XS:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return kLargestHalf * 32.0f;
    default:
      break;
  }
  return std::numeric_limits<float>::max();
}

}  // namespace butterfly
