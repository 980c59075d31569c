#include "butterfly/model/core/finite_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

/// Whether all exponent bits of one of `count` numbers are set, the first at `at` and `step` bytes between two.
template <typename Bits>
bool has_special(const std::byte* at, std::size_t count, std::size_t step, Bits exponent) {
  unsigned found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits{};
    std::memcpy(&bits, at + i * step, sizeof(bits));
    found |= static_cast<unsigned>((bits & exponent) == exponent);
  }
  return found != 0;
}

constexpr std::uint32_t kFloatExponent = 0x7F800000u;
constexpr std::uint16_t kHalfExponent = 0x7C00u, kBFloatExponent = 0x7F80u;

bool row_has_special(const MatrixView& matrix, const std::byte* row) {
  const auto blocks = static_cast<std::size_t>(matrix.cols / block_elements(matrix.type));
  const auto step = static_cast<std::size_t>(block_bytes(matrix.type));
  switch (matrix.type) {
    case DType::kF32:
      return has_special(row, blocks, step, kFloatExponent);
    case DType::kBF16:
      return has_special(row, blocks, step, kBFloatExponent);
    case DType::kF16:
    case DType::kQ8_0:  // their blocks begin with the scale
    case DType::kQ4_0:
      return has_special(row, blocks, step, kHalfExponent);
    case DType::kI32:
      return false;
  }
  return false;
}

float value_at(DType type, const std::byte* at) {
  float value = 0;
  std::uint16_t half = 0;
  if (type == DType::kF32) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::memcpy(&half, at, sizeof(half));
  return type == DType::kBF16 ? bfloat16_to_float(half) : half_to_float(half);
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
    const float value = value_at(matrix.type, row + column / block * block_bytes(matrix.type));
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
