#include "butterfly/kernel/packed/packed_panels.h"

#include <array>
#include <cstring>

#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"
#include "butterfly/kernel/packed/transpose_inl.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/sub_blocks.h"

namespace butterfly {
namespace {

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

}  // namespace

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

void unpack_panel_row(const PanelType& type, const std::byte* panel, std::int64_t i, const IndexRange& of_cols,
                      std::byte* out) {
  switch (type.computing) {
    case DType::kF32:
      return unpack_float_row<std::uint32_t>(panel, i, of_cols, out);
    case DType::kF16:
    case DType::kBF16:
      return unpack_float_row<std::uint16_t>(panel, i, of_cols, out);
    case DType::kQ8_0:
      return unpack_quant_row<BlockQ8_0>(panel, i, of_cols, out);
    case DType::kQ4_0:
      return unpack_quant_row<BlockQ4_0>(panel, i, of_cols, out);
    case DType::kInt8:
      return unpack_int8_row(panel, i, of_cols, out);
    default:
      if (packed_sub_blocks(type.packed).shared) {
        return unpack_super_block_row(type.packed, type.computing, panel, i, of_cols, out);
      }
      return unpack_sub_block_row(type.computing, panel, i, of_cols, out);
  }
}

}  // namespace butterfly
