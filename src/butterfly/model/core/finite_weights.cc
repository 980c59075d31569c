#include "butterfly/model/core/finite_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "butterfly/tensor/half.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

/// Whether all exponent bits of one of `count` numbers are set, the first at `at` and `step` bytes between two.
template <typename Bits>
bool has_special(const std::byte* at, std::size_t count, std::size_t step, Bits exponent) {
  Bits found = 0;
  const auto look = [&](std::size_t offset) {
    Bits bits{};
    std::memcpy(&bits, at + offset, sizeof(bits));
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) == exponent));
  };
  if (step == sizeof(Bits)) {
    for (std::size_t i = 0; i < count; ++i) look(i * sizeof(Bits));  // several at once
  } else {
    for (std::size_t i = 0; i < count; ++i) look(i * step);
  }
  return found != 0;
}

constexpr std::uint32_t kFloatExponent = 0x7F800000u;
constexpr std::uint16_t kHalfExponent = 0x7C00u, kBFloatExponent = 0x7F80u;

/// Where a block keeps its halves: the element itself, or the scales of a quantised block.
struct HalfOffsets {
  int count = 0;
  std::array<std::size_t, 2> at{};
};

constexpr HalfOffsets half_offsets(DType type) {
  switch (type) {
    case DType::kF16:
    case DType::kQ8_0:
    case DType::kInt8:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return {1, {0}};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {2, {0, 2}};
    case DType::kQ2_K:
      return {2, {80, 82}};
    case DType::kQ3_K:
      return {1, {108}};
    case DType::kQ6_K:
      return {1, {208}};
    default:
      return {};
  }
}

/// Floats at the beginning of a block: the element itself, or scales and minima of a computing type.
int leading_floats(DType type) {
  if (has_sub_blocks(type)) return sub_block_form(type).float_bytes() / 4;
  return type == DType::kF32 ? 1 : 0;
}

constexpr std::byte kNoScale{0xFF};  // of MXFP4: its exponents have one code for what is no number

bool row_has_special(const MatrixView& matrix, const std::byte* row) {
  const DType type = matrix.type;
  const auto blocks = static_cast<std::size_t>(matrix.cols / block_elements(type));
  const auto step = static_cast<std::size_t>(block_bytes(type));
  if (type == DType::kBF16) return has_special(row, blocks, step, kBFloatExponent);
  if (type == DType::kMXFP4) {
    for (std::size_t i = 0; i < blocks; ++i) {
      if (row[i * step] == kNoScale) return true;
    }
    return false;
  }
  bool found = false;
  for (int i = 0; i < leading_floats(type); ++i) {
    found = found || has_special(row + 4 * i, blocks, step, kFloatExponent);
  }
  const HalfOffsets halves = half_offsets(type);
  for (int i = 0; i < halves.count; ++i) {
    found = found || has_special(row + halves.at[static_cast<std::size_t>(i)], blocks, step, kHalfExponent);
  }
  return found;
}

/// The number of a block that is not finite; 0 where all are.
float special_of(DType type, const std::byte* block) {
  const auto half_at = [&](std::size_t offset) {
    std::uint16_t half = 0;
    std::memcpy(&half, block + offset, sizeof(half));
    return type == DType::kBF16 ? bfloat16_to_float(half) : half_to_float(half);
  };
  if (type == DType::kMXFP4) return *block == kNoScale ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
  if (type == DType::kBF16) return std::isfinite(half_at(0)) ? 0.0F : half_at(0);
  for (int i = 0; i < leading_floats(type); ++i) {
    float value = 0;
    std::memcpy(&value, block + 4 * i, sizeof(value));
    if (!std::isfinite(value)) return value;
  }
  const HalfOffsets halves = half_offsets(type);
  for (int i = 0; i < halves.count; ++i) {
    const float value = half_at(halves.at[static_cast<std::size_t>(i)]);
    if (!std::isfinite(value)) return value;
  }
  return 0.0F;
}

tl::unexpected<Error> refuse(const WeightSource& source, const std::string& name, std::int64_t row, std::int64_t column,
                             float value) {
  return make_error(ErrorCode::kBadData, "{}: {} has {} in row {}, column {}: weights have to be finite numbers",
                    source.description(), name, value, row, column);
}

}  // namespace

Status check_finite(const WeightSource& source, const std::string& name, const MatrixView& matrix, ThreadTeam& team) {
  const auto size = row_bytes(matrix.type, static_cast<std::uint64_t>(matrix.cols));
  if (!size) return {};  // what packs it says what is wrong
  const std::uint64_t stride = matrix.stride == 0 ? *size : matrix.stride;
  if (matrix.rows <= 0 || matrix.bytes.size() < stride * static_cast<std::uint64_t>(matrix.rows - 1) + *size) return {};
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> first{kNone};
  team.run([&](int member) {
    const WorkRange mine = split_work(matrix.rows, member, team.size());
    for (std::int64_t row = mine.begin; row < mine.end && first.load(std::memory_order_relaxed) > row; ++row) {
      if (!row_has_special(matrix, matrix.bytes.data() + static_cast<std::uint64_t>(row) * stride)) continue;
      std::int64_t before = first.load();
      while (row < before && !first.compare_exchange_weak(before, row)) {
      }
      return;
    }
  });
  if (first == kNone) return {};
  const std::byte* row = matrix.bytes.data() + static_cast<std::uint64_t>(first.load()) * stride;
  const int block = block_elements(matrix.type);
  for (std::int64_t column = 0; column < matrix.cols; column += block) {
    const float value = special_of(matrix.type, row + column / block * block_bytes(matrix.type));
    if (!std::isfinite(value)) return refuse(source, name, first, column, value);
  }
  return {};
}

Status check_finite(const WeightSource& source, const std::string& name, std::span<const float> values) {
  const auto found = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (found == values.end()) return {};
  return refuse(source, name, 0, found - values.begin(), *found);
}

}  // namespace butterfly
