#include "butterfly/model/format/safetensors/scaled_tensors.h"

#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "butterfly/base/text/printable.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

constexpr std::int64_t kMxfp4Bytes = 16;  // of 32 elements

/// E4M3 without infinities: https://arxiv.org/abs/2209.05433.
float decode_e4m3(unsigned code) {
  const unsigned exponent = code >> 3 & 15;
  const unsigned mantissa = code & 7;
  float value = 0;
  if (exponent == 15 && mantissa == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    value = std::ldexp(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
  }
  return (code & 128) != 0 ? -value : value;
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (unsigned code = 0; code < 256; ++code) all[code] = decode_e4m3(code);
    return all;
  }();
  return values;
}

std::int64_t blocks_of(std::int64_t size) {
  return (size + kFp8Block - 1) / kFp8Block;
}

Status check_scales_shape(const ScaledTensor& tensor, const std::string& name, const std::vector<std::int64_t>& shape) {
  if (tensor.scales->shape == shape) return {};
  return make_error(ErrorCode::kBadData, "{}: scales of the shape [{}], expected [{}]", printable(name),
                    fmt::join(tensor.scales->shape, ", "), fmt::join(shape, ", "));
}

Status check_type(const SafetensorsEntry& entry, const std::string& what, const char* expected) {
  if (entry.type_name == expected) return {};
  return make_error(ErrorCode::kUnsupported, "{} is stored as {}, expected {}", what, printable(entry.type_name),
                    expected);
}

struct NewRows {
  WeightView view{};
  std::byte* data = nullptr;
};

NewRows allocate(DType type, std::int64_t rows, std::int64_t cols) {
  const std::uint64_t row = *row_bytes(type, static_cast<std::uint64_t>(cols));
  const auto memory = std::make_shared<std::vector<std::byte>>(row * static_cast<std::uint64_t>(rows));
  return {{.type = type, .rows = rows, .cols = cols, .bytes = *memory, .owner = memory}, memory->data()};
}

/// 16 bytes of neighbours to 16 bytes of elements i and i + 16.
void reorder_nibbles(const std::uint8_t* pairs, std::byte* to) {
  const auto nibble = [&](int i) { return i % 2 == 0 ? pairs[i / 2] & 15 : pairs[i / 2] >> 4; };
  for (int i = 0; i < kQuantBlock / 2; ++i) to[i] = static_cast<std::byte>(nibble(i) | nibble(i + 16) << 4);
}

}  // namespace

Status check_fp8(const ScaledTensor& tensor, const std::string& name) {
  BF_TRY(check_type(*tensor.values, printable(name), "F8_E4M3"));
  if (!tensor.scales->type) {
    return make_error(ErrorCode::kUnsupported, "the scales of {} are stored as {}, expected F32, F16 or BF16",
                      printable(name), printable(tensor.scales->type_name));
  }
  const std::vector<std::int64_t>& shape = tensor.values->shape;
  if (shape.size() != 2) {
    return make_error(ErrorCode::kBadData, "{}: {} dimensions, FP8 weights have 2", printable(name), shape.size());
  }
  return check_scales_shape(tensor, name, {blocks_of(shape[0]), blocks_of(shape[1])});
}

WeightView fp8_rows(const ScaledTensor& tensor, const IndexRange& rows) {
  const std::int64_t cols = tensor.values->shape[1];
  const auto groups = static_cast<std::size_t>(blocks_of(cols));
  const NewRows result = allocate(DType::kBF16, rows.size(), cols);
  const DType scale_type = *tensor.scales->type;
  const std::uint64_t scale_row = *row_bytes(scale_type, groups);
  std::vector<float> scales(groups);
  const std::array<float, 256>& values = e4m3_values();
  std::byte* to = result.data;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (row == rows.begin || row % kFp8Block == 0) {
      const auto block = static_cast<std::uint64_t>(row / kFp8Block);
      decode_row(scale_type, tensor.scales->bytes.subspan(block * scale_row, scale_row), scales);
    }
    const std::byte* from = tensor.values->bytes.data() + row * cols;
    for (std::int64_t col = 0; col < cols; ++col, to += 2) {
      const float scale = scales[static_cast<std::size_t>(col / kFp8Block)];
      const std::uint16_t value = float_to_bfloat16(values[std::to_integer<std::size_t>(from[col])] * scale);
      std::memcpy(to, &value, 2);
    }
  }
  return result.view;
}

namespace {

float int8_scale(const ScaledTensor& tensor, std::int64_t row) {
  const DType type = *tensor.scales->type;
  const auto size = static_cast<std::uint64_t>(block_bytes(type));
  const std::uint64_t at = tensor.scales->bytes.size() == size ? 0 : static_cast<std::uint64_t>(row) * size;
  float scale = 0;
  decode_row(type, tensor.scales->bytes.subspan(at, size), std::span(&scale, 1));
  return scale;
}

}  // namespace

Status check_int8(const ScaledTensor& tensor, const std::string& name) {
  BF_TRY(check_type(*tensor.values, printable(name), "I8"));
  if (!tensor.scales->type) {
    return make_error(ErrorCode::kUnsupported, "the scales of {} are stored as {}, expected F32, F16 or BF16",
                      printable(name), printable(tensor.scales->type_name));
  }
  const std::vector<std::int64_t>& shape = tensor.values->shape;
  if (shape.size() != 2) {
    return make_error(ErrorCode::kBadData, "{}: {} dimensions, int8 weights have 2", printable(name), shape.size());
  }
  const std::vector<std::int64_t>& scales = tensor.scales->shape;
  const bool one = scales == std::vector<std::int64_t>{1}, flat = scales == std::vector<std::int64_t>{shape[0]};
  return one || flat ? Status{} : check_scales_shape(tensor, name, {shape[0], 1});
}

WeightView int8_rows(const ScaledTensor& tensor, const IndexRange& rows,
                     const std::function<std::int64_t(std::int64_t)>& stored_row) {
  const std::int64_t cols = tensor.values->shape[1];
  const NewRows result = allocate(DType::kInt8, rows.size(), cols);
  std::byte* to = result.data;
  BlockQ8_0 block;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::int64_t stored = stored_row(row);
    block.scale = float_to_half(int8_scale(tensor, stored));
    const std::byte* from = tensor.values->bytes.data() + stored * cols;
    for (std::int64_t col = 0; col < cols; col += kQuantBlock, to += sizeof(block)) {
      std::memcpy(block.quants, from + col, sizeof(block.quants));
      std::memcpy(to, &block, sizeof(block));
    }
  }
  return result.view;
}

WeightView int8_as_bf16(const ScaledTensor& tensor, const IndexRange& rows) {
  const std::int64_t cols = tensor.values->shape[1];
  const NewRows result = allocate(DType::kBF16, rows.size(), cols);
  std::byte* to = result.data;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const float scale = int8_scale(tensor, row);
    const auto* from = reinterpret_cast<const std::int8_t*>(tensor.values->bytes.data()) + row * cols;
    for (std::int64_t col = 0; col < cols; ++col, to += 2) {
      const std::uint16_t value = float_to_bfloat16(static_cast<float>(from[col]) * scale);
      std::memcpy(to, &value, 2);
    }
  }
  return result.view;
}

Status check_mxfp4(const ScaledTensor& tensor, const std::string& name) {
  BF_TRY(check_type(*tensor.values, printable(name), "U8"));
  BF_TRY(check_type(*tensor.scales, "the scales of " + printable(name), "U8"));
  std::vector<std::int64_t> shape = tensor.values->shape;
  if (shape.size() < 3 || shape.back() != kMxfp4Bytes) {
    return make_error(ErrorCode::kBadData, "{}: has the shape [{}], MXFP4 blocks end in rows, groups and {} bytes",
                      printable(name), fmt::join(shape, ", "), kMxfp4Bytes);
  }
  shape.pop_back();
  return check_scales_shape(tensor, name, shape);
}

WeightView mxfp4_rows(const ScaledTensor& tensor, const RowSteps& rows) {
  const std::int64_t groups = tensor.scales->shape.back();
  const NewRows result = allocate(DType::kMXFP4, rows.count, groups * kQuantBlock);
  const auto* pairs = reinterpret_cast<const std::uint8_t*>(tensor.values->bytes.data());
  std::byte* to = result.data;
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::int64_t first = (rows.first + r * rows.step) * groups;
    for (std::int64_t group = first; group < first + groups; ++group, to += 1 + kMxfp4Bytes) {
      to[0] = tensor.scales->bytes[static_cast<std::size_t>(group)];
      reorder_nibbles(pairs + group * kMxfp4Bytes, to + 1);
    }
  }
  return result.view;
}

}  // namespace butterfly
