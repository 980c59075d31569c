// What parity tests compare: values and stored matrices that are the same in every run, and equality to the bit.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {

inline std::vector<float> random_floats(std::size_t count, std::uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Where a stored block has its scale and, if it has one, its minimum.
inline std::vector<std::size_t> halves_of_block(DType type) {
  switch (type) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    case DType::kMXFP4:
      return {};
    default:
      return {0};
  }
}

inline std::vector<std::byte> random_matrix(DType type, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * *row_bytes(type, static_cast<std::uint64_t>(cols)));
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  if (type == DType::kF32) {
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
      const float value = normal(engine);
      std::memcpy(&bytes[i], &value, 4);
    }
  } else if (type == DType::kF16 || type == DType::kBF16) {
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      const float value = normal(engine);
      const std::uint16_t half = type == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
      std::memcpy(&bytes[i], &half, 2);
    }
  } else {
    // Random quants, -128 and nibble 0 included: the extremes that saturating instructions would get wrong.
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine());
    for (std::size_t i = 0; i < bytes.size(); i += static_cast<std::size_t>(block_bytes(type))) {
      for (const std::size_t at : halves_of_block(type)) {
        const std::uint16_t scale = float_to_half(std::fabs(normal(engine)) * 0.1f);
        std::memcpy(&bytes[i + at], &scale, 2);
      }
      if (type == DType::kMXFP4) bytes[i] = static_cast<std::byte>(117 + engine() % 8);
      const std::size_t row = bytes.size() / static_cast<std::size_t>(rows);
      if (type == DType::kInt8 && i % row != 0) std::memcpy(&bytes[i], &bytes[i / row * row], 2);
    }
  }
  return bytes;
}

/// A random matrix of `type`, or of its computing type where rows of `cols` are no whole blocks of it or parts of it
/// are cut out: what a weight source hands out then.
struct StoredMatrix {
  StoredMatrix(DType stored, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
    const std::int64_t wide = (cols + kSuperBlock - 1) / kSuperBlock * kSuperBlock;
    const bool whole = cols % block_elements(stored) == 0;
    const auto from = random_matrix(stored, rows, whole ? cols : wide, seed);
    if (computing_type(stored) == stored) {
      bytes = from;
      view = {stored, rows, cols, bytes};
      return;
    }
    const DType type = computing_type(stored);
    const std::size_t row = from.size() / static_cast<std::size_t>(rows);
    const std::size_t computed = *row_bytes(type, static_cast<std::uint64_t>(cols));
    bytes.resize(computed * static_cast<std::size_t>(rows));
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      to_computing_type(stored, ByteSpan(from).subspan(r * row, row), {0, cols},
                        MutableByteSpan(bytes).subspan(r * computed, computed));
    }
    view = {type, rows, cols, bytes};
  }
  StoredMatrix(const StoredMatrix&) = delete;
  std::vector<std::byte> bytes;
  MatrixView view;
};

}  // namespace butterfly
