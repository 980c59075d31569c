// Element types and the quantised block layouts of model files. Plain values, thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace butterfly {

/// How elements are stored. Quantised types hold blocks of 32 consecutive elements of one row.
enum class DType : std::uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kI32 };

inline constexpr std::array kAllDTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kI32};

/// Elements per quantised block, of weights and of quantised activations alike.
inline constexpr int kQuantBlock = 32;

/// value[i] = scale * quants[i]; scale is an IEEE half.
struct BlockQ8_0 {
  std::uint16_t scale;
  std::int8_t quants[kQuantBlock];
};
static_assert(sizeof(BlockQ8_0) == 34);

/// value[i] = scale * (nibble[i] - 8); the low nibbles of quants hold elements 0..15, the high ones 16..31.
struct BlockQ4_0 {
  std::uint16_t scale;
  std::uint8_t quants[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ4_0) == 18);

/// Elements per block: 32 for quantised types, else 1.
constexpr int block_elements(DType type) {
  return type == DType::kQ8_0 || type == DType::kQ4_0 ? kQuantBlock : 1;
}

/// Bytes per block of block_elements(type) elements.
constexpr int block_bytes(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kQ8_0:
      return sizeof(BlockQ8_0);
    case DType::kQ4_0:
      return sizeof(BlockQ4_0);
  }
  return 0;
}

/// Bytes of one row of `elements`; nothing when elements is no whole number of blocks or the product overflows.
constexpr std::optional<std::uint64_t> row_bytes(DType type, std::uint64_t elements) {
  const auto per_block = static_cast<std::uint64_t>(block_elements(type));
  if (elements % per_block != 0) return std::nullopt;
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / per_block, static_cast<std::uint64_t>(block_bytes(type)), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

/// "f32", "f16", "bf16", "q8_0", "q4_0", "i32".
constexpr std::string_view to_string(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kQ4_0:
      return "q4_0";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

/// The inverse of to_string.
constexpr std::optional<DType> parse_dtype(std::string_view name) {
  for (DType type : kAllDTypes) {
    if (to_string(type) == name) return type;
  }
  return std::nullopt;
}

}  // namespace butterfly
