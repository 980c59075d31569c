#include "butterfly/kernel/packed/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "butterfly/base/check.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"
#include "butterfly/kernel/packed/transpose_inl.h"
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

template <typename Vector, typename Element>
void pack_float_panel(const std::byte* source, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                      std::byte* panel) {
  constexpr std::int64_t kCount = kSquareSide<Vector>;
  const auto at = [&](std::int64_t i, std::int64_t k) {
    return source + i * stride + k * static_cast<std::int64_t>(sizeof(Element));
  };
  auto* out = reinterpret_cast<Element*>(panel);
  if (rows < kPanel) std::memset(panel, 0, static_cast<std::size_t>(cols * kPanel) * sizeof(Element));
  const std::int64_t rows_at_once = rows / kCount * kCount, cols_at_once = cols / kCount * kCount;
  for (std::int64_t k = 0; k < cols_at_once; k += kCount) {
    for (std::int64_t i = 0; i < rows_at_once; i += kCount) {
      Vector square[kCount];
      for (std::int64_t j = 0; j < kCount; ++j) std::memcpy(&square[j], at(i + j, k), sizeof(Vector));
      transpose(square);
      for (std::int64_t j = 0; j < kCount; ++j) std::memcpy(out + (k + j) * kPanel + i, &square[j], sizeof(Vector));
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = i < rows_at_once ? cols_at_once : 0; k < cols; ++k) {
      std::memcpy(&out[k * kPanel + i], at(i, k), sizeof(Element));
    }
  }
}

/// Four columns' quants of an output, as a panel has them beside those of its other outputs.
using Quad = std::uint32_t;

/// The quants of a block.
struct QuadBlock {
  Quad quads[kPanel][8] = {};  // of each output
  std::byte* of(std::int64_t output) { return reinterpret_cast<std::byte*>(quads[output]); }

  /// The first `count` quads of each output, their bits turned where `turned` has ones.
  void put(int count, Quad turned, unsigned char* to) const {
    const Words turns{turned, turned, turned, turned};
    for (int first = 0; first < count; first += 4) {
      for (int i = 0; i < kPanel; i += 4) {
        Words square[4];
        for (int j = 0; j < 4; ++j) std::memcpy(&square[j], &quads[i + j][first], sizeof(Words));
        transpose(square);
        for (int j = 0; j < 4 && first + j < count; ++j) {
          const Words words = square[j] ^ turns;
          std::memcpy(to + ((first + j) * kPanel + i) * 4, &words, sizeof(Words));
        }
      }
    }
  }
};

/// `Block` is BlockQ8_0 or BlockQ4_0.
template <typename Block>
void pack_quant_panel(const std::byte* source, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                      std::byte* panel) {
  constexpr std::size_t kBytes = sizeof(Block::quants);
  constexpr PackedPairs kForm{.nibbles = kBytes != kQuantBlock};
  const std::int64_t blocks = cols / kQuantBlock;
  if (blocks % 2 == 1) std::memset(panel + kForm.quants_at(blocks - 1), 0, kForm.pair_bytes());
  QuadBlock packed;
  for (std::int64_t i = rows; i < kPanel; ++i) std::memset(packed.of(i), kForm.nibbles ? 0x88 : 0, kBytes);
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::uint16_t scales[kPanel] = {};
    for (std::int64_t i = 0; i < rows; ++i) {
      Block block;
      std::memcpy(&block, source + i * stride + b * static_cast<std::int64_t>(sizeof(Block)), sizeof(Block));
      std::memcpy(packed.of(i), block.quants, kBytes);
      scales[i] = block.scale;
    }
    std::memcpy(panel + kForm.scales_at(b), scales, sizeof(scales));
    packed.put(static_cast<int>(kBytes / sizeof(Quad)), kForm.nibbles ? 0 : 0x80808080u,
               reinterpret_cast<unsigned char*>(panel + kForm.quants_at(b)));
  }
}

void pack_int8_panel(const std::byte* source, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                     std::byte* panel) {
  QuadBlock packed;
  float scales[kPanel] = {};
  const std::int64_t end = PackedInt8::quants_at(cols / kQuantBlock);
  std::memset(panel + end, 0, static_cast<std::size_t>(PackedInt8::panel_bytes(cols / kQuantBlock) - end));
  for (std::int64_t b = 0; b < cols / kQuantBlock; ++b) {
    for (std::int64_t i = 0; i < rows; ++i) {
      BlockQ8_0 block;
      std::memcpy(&block, source + i * stride + b * static_cast<std::int64_t>(sizeof(block)), sizeof(block));
      std::memcpy(packed.of(i), block.quants, sizeof(block.quants));
      scales[i] = half_to_float(block.scale);
    }
    packed.put(kQuantBlock / 4, 0x80808080u, reinterpret_cast<unsigned char*>(panel + PackedInt8::quants_at(b)));
  }
  std::memcpy(panel, scales, sizeof(scales));
}

void pack_sub_block_panel(DType type, const std::byte* source, std::int64_t stride, std::int64_t rows,
                          std::int64_t cols, std::byte* panel) {
  const PackedSubBlocks form = packed_sub_blocks(packed_type(type));
  const int floats = form.subs() * (form.minima ? 2 : 1);
  const std::size_t bytes = form.nibbles ? 16 : 32;
  QuadBlock packed;
  for (std::int64_t b = 0; b < cols / kQuantBlock; ++b, panel += form.panel_bytes(1)) {
    float factors[4][kPanel] = {};
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::byte* block = source + i * stride + b * block_bytes(type);
      for (int f = 0; f < floats; ++f) std::memcpy(&factors[f][i], block + 4 * f, 4);
      std::memcpy(packed.of(i), block + 4 * floats, bytes);
    }
    std::memcpy(panel + form.quant_bytes(), factors, static_cast<std::size_t>(floats) * sizeof(factors[0]));
    packed.put(static_cast<int>(bytes / sizeof(Quad)), form.nibbles ? 0 : 0x80808080u,
               reinterpret_cast<unsigned char*>(panel));
  }
}

/// A block's codes as a panel has them: quads of nibbles, then those of high bits.
void put_codes(const PackedSubBlocks& form, const std::uint8_t* codes, Quad* to) {
  Quad quads[8];
  std::memcpy(quads, codes, sizeof(quads));
  if (form.high_bits == 2) {
    for (Quad& quad : quads) quad ^= 0x20202020u;  // from -32 to 31 as 0 to 63, in six bits
  }
  for (int q = 0; q < 4; ++q) to[q] = (quads[q] & 0x0F0F0F0Fu) | (quads[q + 4] & 0x0F0F0F0Fu) << 4;
  if (form.high_bits == 0) return;
  const int in_line = 8 / form.high_bits;  // quads
  const Quad mask = form.high_bits == 2 ? 0x03030303u : 0x01010101u;
  for (int line = 0; line < form.high_bits; ++line) {
    to[4 + line] = 0;
    for (int q = 0; q < in_line; ++q) {
      to[4 + line] |= (quads[line * in_line + q] >> 4 & mask) << q * form.high_bits;
    }
  }
}

std::uint8_t code_at(const PackedSubBlocks& form, const unsigned char* quants, std::int64_t i, int k) {
  const unsigned nibbles = quants[k % 16 / 4 * 4 * kPanel + i * 4 + k % 4];
  unsigned bits = k < 16 ? nibbles & 15u : nibbles >> 4;
  if (form.high_bits == 0) return static_cast<std::uint8_t>(bits);
  const int quad = k / 4;
  const int in_line = 8 / form.high_bits;
  const unsigned high = quants[16 * kPanel + quad / in_line * 64 + i * 4 + k % 4];
  bits |= (high >> quad % in_line * form.high_bits & ((1u << form.high_bits) - 1)) << 4;
  return static_cast<std::uint8_t>(form.high_bits == 2 ? bits - 32 : bits);
}

/// A super-block's factors of output `i`; `first` is the super-block's first block in the panel.
void put_factors(const PackedSubBlocks& form, const SuperBlockFactors& factors, std::int64_t first, std::int64_t i,
                 unsigned char* panel) {
  const auto at_of = [&](const unsigned char* place) { return panel + (place - panel); };
  for (int b = 0; b < kSuperBlock / kQuantBlock; ++b) {
    const PackedBlock at = block_in(form, panel, first + b);
    for (int sub = 0; sub < form.subs(); ++sub) {
      const int number = b * form.subs() + sub;
      std::memcpy(at_of(at.scales) + sub * kPanel + i, &factors.scales[number], 1);
      if (form.minima) std::memcpy(at_of(at.scales) + (form.subs() + sub) * kPanel + i, &factors.minima[number], 1);
    }
  }
  const PackedBlock at = block_in(form, panel, first);
  std::memcpy(at_of(at.halves) + 2 * i, &factors.scale, 2);
  if (form.minima) std::memcpy(at_of(at.halves) + 2 * (kPanel + i), &factors.minimum, 2);
}

/// Rows of whole super-blocks as files store them.
void pack_super_block_panel(DType type, const std::byte* source, std::int64_t stride, std::int64_t rows,
                            std::int64_t cols, std::byte* panel) {
  constexpr int kBlocks = kSuperBlock / kQuantBlock;
  const PackedSubBlocks form = packed_sub_blocks(packed_type(type));
  const auto stored = static_cast<std::size_t>(block_bytes(type));
  auto* to = reinterpret_cast<unsigned char*>(panel);
  std::memset(panel, 0, static_cast<std::size_t>(form.panel_bytes(cols / kQuantBlock)));
  SuperBlockFactors factors;
  std::array<std::uint8_t, kSuperBlock> codes{};
  std::array<QuadBlock, kBlocks> packed;
  for (std::int64_t first = 0; first < cols / kQuantBlock; first += kBlocks, source += stored) {
    for (std::int64_t i = 0; i < rows; ++i) {
      take_super_block(type, ByteSpan(source + i * stride, stored), factors, codes);
      put_factors(form, factors, first, i, to);
      for (std::size_t b = 0; b < packed.size(); ++b) {
        put_codes(form, codes.data() + b * kQuantBlock, packed[b].quads[i]);
      }
    }
    for (int b = 0; b < kBlocks; ++b) {
      packed[static_cast<std::size_t>(b)].put(4 + form.high_bits, 0, to + (block_in(form, to, first + b).quants - to));
    }
  }
}

/// What that did with one of its rows, in the computing type.
void unpack_super_block_row(PackedType packed, DType computing, const std::byte* panel, std::int64_t i,
                            const IndexRange& of_cols, std::byte* out) {
  const PackedSubBlocks form = packed_sub_blocks(packed);
  const auto* begin = reinterpret_cast<const unsigned char*>(panel);
  const int floats = form.subs() * (form.minima ? 2 : 1);
  for (std::int64_t b = of_cols.begin / kQuantBlock; b < of_cols.end / kQuantBlock;
       ++b, out += block_bytes(computing)) {
    const PackedBlock at = block_in(form, begin, b);
    for (int f = 0; f < floats; ++f) {
      std::uint16_t half = 0;
      std::memcpy(&half, at.halves + 2 * (f < form.subs() ? i : kPanel + i), 2);
      const auto code = static_cast<std::int8_t>(at.scales[f * kPanel + i]);
      const float factor = half_to_float(half) * static_cast<float>(code);
      std::memcpy(out + 4 * f, &factor, 4);
    }
    std::byte* quants = out + 4 * floats;
    for (int k = 0; k < kQuantBlock; ++k) {
      const std::uint8_t code = code_at(form, at.quants, i, k);
      if (form.high_bits > 0) {
        quants[k] = static_cast<std::byte>(code);
      } else {
        quants[k % 16] = static_cast<std::byte>(k < 16 ? code : std::to_integer<int>(quants[k % 16]) | code << 4);
      }
    }
  }
}

/// What pack_sub_block_panel() did with one of its rows.
void unpack_sub_block_row(DType type, const std::byte* panel, std::int64_t i, const IndexRange& of_cols,
                          std::byte* out) {
  const PackedSubBlocks form = packed_sub_blocks(packed_type(type));
  const int floats = form.subs() * (form.minima ? 2 : 1);
  const int bytes = form.nibbles ? 16 : 32;
  const unsigned char offset = form.nibbles ? 0 : 0x80;
  for (std::int64_t b = of_cols.begin / kQuantBlock; b < of_cols.end / kQuantBlock; ++b, out += block_bytes(type)) {
    const std::byte* block = panel + b * form.panel_bytes(1);
    for (int f = 0; f < floats; ++f) {
      std::memcpy(out + 4 * f, block + form.quant_bytes() + (f * kPanel + i) * 4, 4);
    }
    const auto* quants = reinterpret_cast<const unsigned char*>(block);
    for (int j = 0; j < bytes; ++j) {
      out[4 * floats + j] = static_cast<std::byte>(quants[j / 4 * 4 * kPanel + i * 4 + j % 4] ^ offset);
    }
  }
}

template <typename Element>
void unpack_float_row(const std::byte* panel, std::int64_t i, const IndexRange& cols, std::byte* out) {
  const auto* from = reinterpret_cast<const Element*>(panel);
  for (std::int64_t k = cols.begin; k < cols.end; ++k, out += sizeof(Element)) {
    std::memcpy(out, &from[k * kPanel + i], sizeof(Element));
  }
}

/// What pack_int8_panel() did with one of its rows.
void unpack_int8_row(const std::byte* panel, std::int64_t i, const IndexRange& of_cols, std::byte* out) {
  float scale = 0;
  std::memcpy(&scale, panel + 4 * i, sizeof(scale));
  BlockQ8_0 block;
  block.scale = float_to_half(scale);
  for (std::int64_t b = of_cols.begin / kQuantBlock; b < of_cols.end / kQuantBlock; ++b, out += sizeof(block)) {
    const auto* from = reinterpret_cast<const unsigned char*>(panel + PackedInt8::quants_at(b)) + i * 4;
    for (std::int64_t j = 0; j < kQuantBlock; ++j) {
      const auto quant = static_cast<unsigned char>(from[j / 4 * 4 * kPanel + j % 4] ^ 0x80);
      std::memcpy(&block.quants[j], &quant, 1);
    }
    std::memcpy(out, &block, sizeof(block));
  }
}

/// What pack_quant_panel() did with one of its rows.
template <typename Block>
void unpack_quant_row(const std::byte* panel, std::int64_t i, const IndexRange& of_cols, std::byte* out) {
  constexpr std::int64_t kBytes = sizeof(Block::quants);
  constexpr PackedPairs kForm{.nibbles = kBytes != kQuantBlock};
  for (std::int64_t b = of_cols.begin / kQuantBlock; b < of_cols.end / kQuantBlock; ++b, out += sizeof(Block)) {
    const auto* from = reinterpret_cast<const unsigned char*>(panel + kForm.quants_at(b)) + i * 4;
    Block block;
    std::memcpy(&block.scale, panel + kForm.scales_at(b) + 2 * i, 2);
    for (std::int64_t j = 0; j < kBytes; ++j) {
      const unsigned char byte = from[j / 4 * 4 * kPanel + j % 4];
      const auto quant = static_cast<unsigned char>(kBytes == kQuantBlock ? byte ^ 0x80 : byte);
      std::memcpy(&block.quants[j], &quant, 1);
    }
    std::memcpy(out, &block, sizeof(Block));
  }
}

/// Outputs of a panel, and their columns.
struct PanelShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// Rows of the type `layout`, `step` bytes apart.
void pack_panel(DType layout, const std::byte* from, std::int64_t step, const PanelShape& shape, std::byte* to) {
  switch (layout) {
    case DType::kF32:
      return pack_float_panel<Words, std::uint32_t>(from, step, shape.rows, shape.cols, to);
    case DType::kF16:
    case DType::kBF16:
      return pack_float_panel<Halves, std::uint16_t>(from, step, shape.rows, shape.cols, to);
    case DType::kQ8_0:
      return pack_quant_panel<BlockQ8_0>(from, step, shape.rows, shape.cols, to);
    case DType::kQ4_0:
      return pack_quant_panel<BlockQ4_0>(from, step, shape.rows, shape.cols, to);
    case DType::kInt8:
      return pack_int8_panel(from, step, shape.rows, shape.cols, to);
    default:
      if (has_shared_scales(layout)) return pack_super_block_panel(layout, from, step, shape.rows, shape.cols, to);
      return pack_sub_block_panel(layout, from, step, shape.rows, shape.cols, to);
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
    switch (type_) {
      case DType::kF32:
        unpack_float_row<std::uint32_t>(panel, i, of_cols, to);
        break;
      case DType::kF16:
      case DType::kBF16:
        unpack_float_row<std::uint16_t>(panel, i, of_cols, to);
        break;
      case DType::kQ8_0:
        unpack_quant_row<BlockQ8_0>(panel, i, of_cols, to);
        break;
      case DType::kQ4_0:
        unpack_quant_row<BlockQ4_0>(panel, i, of_cols, to);
        break;
      case DType::kInt8:
        unpack_int8_row(panel, i, of_cols, to);
        break;
      default:
        if (packed_sub_blocks(packed_as_).shared) {
          unpack_super_block_row(packed_as_, type_, panel, i, of_cols, to);
        } else {
          unpack_sub_block_row(type_, panel, i, of_cols, to);
        }
    }
  }
}

void PackedMatrix::unpack_row(std::int64_t row, std::span<float> out) const {
  BF_CHECK(row >= 0 && row < rows_ && out.size() == static_cast<std::size_t>(cols_));
  std::vector<std::byte> stored(*row_bytes(type_, out.size()));
  unpack({row, row + 1}, {0, cols_}, stored, stored.size());
  decode_row(type_, stored, out);
}

}  // namespace butterfly
