// Element types and the quantised block layouts of model files. Plain values, thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace butterfly {

/// How elements are stored. Quantised types hold blocks of 32 or 256 consecutive elements of one row; sub_blocks.h has
/// the layouts of those that are not here. The numbers travel between nodes.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kI32,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  // What the types above are computed as, never in files: blocks of 32 with a float scale for 32 or 16 elements, "Min"
  // with a float minimum for as many, and bytes or nibbles (sub_blocks.h).
  kBytes16,
  kBytes32Min,
  kNibbles16,
  kNibbles16Min,
  kNibbles32Min,
  kNibblesIQ4,
  kNibblesMXFP4,
  kInt8,  // in files, too
};

/// What files store and options name.
inline constexpr std::array kAllDTypes{DType::kF32,    DType::kF16,   DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                       DType::kI32,    DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1, DType::kQ2_K,
                                       DType::kQ3_K,   DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL,
                                       DType::kIQ4_XS, DType::kMXFP4, DType::kInt8};
inline constexpr int kDTypes = static_cast<int>(DType::kInt8) + 1;

/// Elements per block of quantised activations, and of weights as they are computed with.
inline constexpr int kQuantBlock = 32;

/// Elements per block of the types whose names end in _K, and of IQ4_XS.
inline constexpr int kSuperBlock = 256;

/// value[i] = scale * quants[i]; scale is an IEEE half. Also of int8, where all blocks of a row have one scale.
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

/// What a type is called, and how large its blocks are.
struct DTypeInfo {
  std::string_view name{};
  int block_elements = 0;
  int block_bytes = 0;
};

/// In the order of DType.
inline constexpr std::array<DTypeInfo, kDTypes> kDTypeInfos{{
    {"f32", 1, 4},
    {"f16", 1, 2},
    {"bf16", 1, 2},
    {"q8_0", kQuantBlock, sizeof(BlockQ8_0)},
    {"q4_0", kQuantBlock, sizeof(BlockQ4_0)},
    {"i32", 1, 4},
    {"q4_1", kQuantBlock, 20},
    {"q5_0", kQuantBlock, 22},
    {"q5_1", kQuantBlock, 24},
    {"q2_k", kSuperBlock, 84},
    {"q3_k", kSuperBlock, 110},
    {"q4_k", kSuperBlock, 144},
    {"q5_k", kSuperBlock, 176},
    {"q6_k", kSuperBlock, 210},
    {"iq4_nl", kQuantBlock, 18},
    {"iq4_xs", kSuperBlock, 136},
    {"mxfp4", kQuantBlock, 17},
    {"bytes16", kQuantBlock, 2 * 4 + 32},
    {"bytes32min", kQuantBlock, 2 * 4 + 32},
    {"nibbles16", kQuantBlock, 2 * 4 + 16},
    {"nibbles16min", kQuantBlock, 4 * 4 + 16},
    {"nibbles32min", kQuantBlock, 2 * 4 + 16},
    {"nibbles_iq4", kQuantBlock, 4 + 16},
    {"nibbles_mxfp4", kQuantBlock, 4 + 16},
    {"int8", kQuantBlock, sizeof(BlockQ8_0)},
}};

constexpr const DTypeInfo& info_of(DType type) {
  return kDTypeInfos[static_cast<std::size_t>(type)];
}

/// Elements per block: 32 or 256 for quantised types, else 1.
constexpr int block_elements(DType type) {
  return info_of(type).block_elements;
}

/// Bytes per block of block_elements(type) elements.
constexpr int block_bytes(DType type) {
  return info_of(type).block_bytes;
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

/// "f32", "f16", "bf16", "q8_0", "q4_k", "i32" and so on.
constexpr std::string_view to_string(DType type) {
  return info_of(type).name;
}

/// The inverse of to_string, for types of files.
constexpr std::optional<DType> parse_dtype(std::string_view name) {
  for (DType type : kAllDTypes) {
    if (to_string(type) == name) return type;
  }
  return std::nullopt;
}

/// What weights of `type` are computed as: a type of 32 elements a block in which every value is
/// scale * quant (- minimum) with a quant that fits a signed byte; `type` itself where it is that already, or is not
/// quantised.
constexpr DType computing_type(DType type) {
  switch (type) {
    case DType::kQ5_0:
      return DType::kQ8_0;
    case DType::kQ4_1:
    case DType::kQ4_K:
      return DType::kNibbles32Min;
    case DType::kQ5_1:
    case DType::kQ5_K:
      return DType::kBytes32Min;
    case DType::kQ2_K:
      return DType::kNibbles16Min;
    case DType::kQ3_K:
      return DType::kNibbles16;
    case DType::kQ6_K:
      return DType::kBytes16;
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return DType::kNibblesIQ4;
    case DType::kMXFP4:
      return DType::kNibblesMXFP4;
    default:
      return type;
  }
}

}  // namespace butterfly
