#include "butterfly/kernel/packed/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/kernel/packed/packed_panels.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/quantize.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

constexpr std::uintptr_t kPackedLine = 64;  // that kernels read at once

/// The type in whose layout a matrix of `type` is packed.
DType layout_type(DType type) {
  return has_shared_scales(type) ? type : computing_type(type);
}

/// Of a layout.
std::int64_t panel_stride_of(DType type, std::int64_t cols) {
  const std::int64_t blocks = cols / kQuantBlock;
  switch (type) {
    case DType::kF32:
      return cols * kPanel * 4;
    case DType::kF16:
    case DType::kBF16:
      return (cols * kPanel * 2 + 63) / 64 * 64;
    case DType::kQ8_0:
    case DType::kQ4_0:
      return PackedPairs{.nibbles = type == DType::kQ4_0}.panel_bytes(blocks);
    case DType::kInt8:
      return PackedInt8::panel_bytes(blocks);
    case DType::kI32:
      return 0;
    default:
      return packed_sub_blocks(packed_type(type)).panel_bytes(blocks);
  }
}

/// Rows of a panel in another type than theirs; `memory` holds them.
const std::byte* re_express(const MatrixView& source, std::uint64_t stride, std::int64_t first, std::int64_t rows,
                            std::vector<std::byte>& memory) {
  const auto cols = static_cast<std::uint64_t>(source.cols);
  const std::uint64_t row = *row_bytes(source.type, cols);
  const std::uint64_t wide = *row_bytes(computing_type(source.type), cols);
  memory.resize(wide * kPanel);
  for (std::int64_t i = 0; i < rows; ++i) {
    to_computing_type(source.type, source.bytes.subspan(static_cast<std::uint64_t>(first + i) * stride, row),
                      {0, source.cols}, MutableByteSpan(memory).subspan(static_cast<std::uint64_t>(i) * wide, wide));
  }
  return memory.data();
}

/// Errors: kBadData naming the row whose blocks have different scales.
Status check_row_scales(const MatrixView& source, std::uint64_t stride) {
  if (source.type != DType::kInt8) return {};
  const std::uint64_t row = *row_bytes(source.type, static_cast<std::uint64_t>(source.cols));
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(source.rows); ++r) {
    const std::byte* scale = source.bytes.data() + r * stride;
    for (std::uint64_t block = sizeof(BlockQ8_0); block < row; block += sizeof(BlockQ8_0)) {
      if (std::memcmp(scale, scale + block, sizeof(BlockQ8_0::scale)) == 0) continue;
      return make_error(ErrorCode::kBadData, "row {} of an int8 matrix has more than one scale", r);
    }
  }
  return {};
}

/// Kernels add up as many products of the types of bytes as five and six bits allow. Errors: kBadData naming the quant.
Status check_quants(const MatrixView& source, std::uint64_t stride) {
  if (source.type != DType::kBytes16 && source.type != DType::kBytes32Min) return {};
  const int least = source.type == DType::kBytes16 ? -32 : 0;
  constexpr int kLargest = 31;
  const auto step = static_cast<std::size_t>(block_bytes(source.type));
  const std::uint64_t row = *row_bytes(source.type, static_cast<std::uint64_t>(source.cols));
  for (std::uint64_t r = 0; r < static_cast<std::uint64_t>(source.rows); ++r) {
    for (std::uint64_t block = r * stride; block < r * stride + row; block += step) {
      for (std::size_t i = step - kQuantBlock; i < step; ++i) {
        const auto quant = static_cast<std::int8_t>(source.bytes[block + i]);
        if (quant >= least && quant <= kLargest) continue;
        return make_error(ErrorCode::kBadData, "a {} matrix has the quant {}, they are from {} to {}",
                          to_string(source.type), quant, least, kLargest);
      }
    }
  }
  return {};
}

}  // namespace

PackedType packed_type(DType type) {
  switch (type) {
    case DType::kQ2_K:
      return PackedType::kQ2_K;
    case DType::kQ3_K:
      return PackedType::kQ3_K;
    case DType::kQ4_K:
      return PackedType::kQ4_K;
    case DType::kQ5_K:
      return PackedType::kQ5_K;
    case DType::kQ6_K:
      return PackedType::kQ6_K;
    case DType::kIQ4_XS:
      return PackedType::kIQ4_XS;
    default:
      break;
  }
  switch (computing_type(type)) {
    case DType::kF16:
      return PackedType::kF16;
    case DType::kBF16:
      return PackedType::kBF16;
    case DType::kQ8_0:
      return PackedType::kQ8_0;
    case DType::kQ4_0:
      return PackedType::kQ4_0;
    case DType::kInt8:
      return PackedType::kInt8;
    case DType::kBytes16:
      return PackedType::kBytes16;
    case DType::kBytes32Min:
      return PackedType::kBytes32Min;
    case DType::kNibbles16:
      return PackedType::kNibbles16;
    case DType::kNibbles16Min:
      return PackedType::kNibbles16Min;
    case DType::kNibbles32Min:
      return PackedType::kNibbles32Min;
    case DType::kNibblesIQ4:
    case DType::kNibblesMXFP4:
      return PackedType::kNibbles32;
    default:
      return PackedType::kF32;
  }
}

std::uint64_t packed_row_bytes(DType type, std::uint64_t cols) {
  const bool whole = row_bytes(type, cols).has_value();
  if (whole && type == DType::kInt8) return cols + sizeof(float);
  if (whole && has_shared_scales(type)) {
    const PackedSubBlocks form = packed_sub_blocks(packed_type(type));
    return static_cast<std::uint64_t>(form.panel_bytes(static_cast<long>(cols / kQuantBlock)) / kPanel);
  }
  return row_bytes(computing_type(type), cols).value_or(cols * sizeof(float));
}

MatrixView MatrixView::part(const IndexRange& of_rows, const IndexRange& of_cols) const {
  const int block = block_elements(type);
  BF_CHECK(0 <= of_rows.begin && of_rows.begin < of_rows.end && of_rows.end <= rows, "a part has rows of the whole");
  BF_CHECK(0 <= of_cols.begin && of_cols.begin < of_cols.end && of_cols.end <= cols, "a part has columns of the whole");
  BF_CHECK(of_cols.begin % block == 0 && of_cols.end % block == 0, "a part has whole blocks");
  const std::uint64_t step = stride == 0 ? *row_bytes(type, static_cast<std::uint64_t>(cols)) : stride;
  const std::uint64_t before = *row_bytes(type, static_cast<std::uint64_t>(of_cols.begin));
  const std::uint64_t wide = *row_bytes(type, static_cast<std::uint64_t>(of_cols.size()));
  const std::uint64_t begin = static_cast<std::uint64_t>(of_rows.begin) * step + before;
  const std::uint64_t size = static_cast<std::uint64_t>(of_rows.size() - 1) * step + wide;
  return {type, of_rows.size(), of_cols.size(), bytes.subspan(begin, size), step};
}

std::uint64_t PackedMatrix::packed_bytes(DType type, std::int64_t rows, std::int64_t cols) {
  return static_cast<std::uint64_t>((rows + kPanel - 1) / kPanel * panel_stride_of(layout_type(type), cols));
}

PackedMatrix::PackedMatrix(DType stored_type, std::int64_t rows, std::int64_t cols)
    : stored_type_(stored_type),
      type_(computing_type(stored_type)),
      packed_as_(packed_type(stored_type)),
      rows_(rows),
      cols_(cols),
      panel_stride_(panel_stride_of(layout_type(stored_type), cols)) {}

std::optional<PackedMatrix> PackedMatrix::over(DType stored_type, std::int64_t rows, std::int64_t cols, ByteSpan packed,
                                               std::shared_ptr<const void> owner) {
  if (stored_type == DType::kI32 || rows <= 0 || cols <= 0) return std::nullopt;
  if (!row_bytes(stored_type, static_cast<std::uint64_t>(cols))) return std::nullopt;
  PackedMatrix matrix(stored_type, rows, cols);
  const auto stride = static_cast<std::uint64_t>(matrix.panel_stride_);
  const auto panels = static_cast<std::uint64_t>(matrix.panels());
  if (packed.size() % panels != 0 || packed.size() / panels != stride) return std::nullopt;
  if (reinterpret_cast<std::uintptr_t>(packed.data()) % kPackedLine != 0) return std::nullopt;
  matrix.packed_ = packed;
  matrix.owner_ = std::move(owner);
  return matrix;
}

Result<PackedMatrix> PackedMatrix::pack(const MatrixView& source, ThreadTeam& team) {
  if (source.type == DType::kI32) return make_error(ErrorCode::kUnsupported, "an i32 matrix cannot be multiplied");
  const auto row = row_bytes(source.type, static_cast<std::uint64_t>(source.cols));
  const std::uint64_t stride = source.stride == 0 ? row.value_or(0) : source.stride;
  const auto gaps = checked_multiply(stride, static_cast<std::uint64_t>(source.rows - 1));
  if (source.rows <= 0 || source.cols <= 0 || !row || !gaps || checked_add(*gaps, *row) != source.bytes.size()) {
    return make_error(ErrorCode::kBadData, "a {} matrix of {} x {} cannot have {} bytes", to_string(source.type),
                      source.rows, source.cols, source.bytes.size());
  }
  BF_TRY(check_quants(source, stride));
  BF_TRY(check_row_scales(source, stride));
  PackedMatrix packed(source.type, source.rows, source.cols);
  const DType layout = layout_type(source.type);
  BF_ASSIGN_OR_RETURN(packed.buffer_, AlignedBuffer::create_beside_others(
                                          static_cast<std::uint64_t>(packed.panels() * packed.panel_stride_)));
  packed.packed_ = {packed.buffer_.data(), packed.buffer_.bytes()};
  packed.held_ = trace::Held(trace::Owner::kWeights, packed.buffer_.bytes());
  team.run([&](int member) {
    const WorkRange range = split_work(packed.panels(), member, team.size());
    std::vector<std::byte> memory;
    for (std::int64_t panel = range.begin; panel < range.end; ++panel) {
      const std::int64_t first = panel * kPanel;
      const std::int64_t rows = std::min<std::int64_t>(kPanel, source.rows - first);
      const bool stored = layout == source.type;
      const std::byte* from = stored ? source.bytes.data() + static_cast<std::uint64_t>(first) * stride
                                     : re_express(source, stride, first, rows, memory);
      const auto step =
          static_cast<std::int64_t>(stored ? stride : *row_bytes(layout, static_cast<std::uint64_t>(source.cols)));
      std::byte* to = packed.buffer_.data() + panel * packed.panel_stride_;
      pack_panel(layout, from, step, {rows, source.cols}, to);
    }
  });
  return packed;
}

void PackedMatrix::unpack(const IndexRange& of_rows, const IndexRange& of_cols, MutableByteSpan out,
                          std::uint64_t stride) const {
  BF_CHECK(0 <= of_rows.begin && of_rows.begin < of_rows.end && of_rows.end <= rows_, "rows of this matrix");
  BF_CHECK(0 <= of_cols.begin && of_cols.begin < of_cols.end && of_cols.end <= cols_, "columns of this matrix");
  const int block = block_elements(type_);
  BF_CHECK(of_cols.begin % block == 0 && of_cols.end % block == 0, "whole blocks");
  const std::uint64_t wide = *row_bytes(type_, static_cast<std::uint64_t>(of_cols.size()));
  BF_CHECK(stride * static_cast<std::uint64_t>(of_rows.size() - 1) + wide <= out.size(), "room for the rows");
  std::byte* to = out.data();
  for (std::int64_t row = of_rows.begin; row < of_rows.end; ++row, to += stride) {
    const std::byte* panel = packed_.data() + row / kPanel * panel_stride_;
    const std::int64_t i = row % kPanel;
    unpack_panel_row({packed_as_, type_}, panel, i, of_cols, to);
  }
}

void PackedMatrix::unpack_row(std::int64_t row, std::span<float> out) const {
  BF_CHECK(row >= 0 && row < rows_ && out.size() == static_cast<std::size_t>(cols_));
  std::vector<std::byte> stored(*row_bytes(type_, out.size()));
  unpack({row, row + 1}, {0, cols_}, stored, stored.size());
  decode_row(type_, stored, out);
}

}  // namespace butterfly
