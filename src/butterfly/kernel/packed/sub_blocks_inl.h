// How quantised types lie in a panel: block after block, each the quants of 16 outputs and 32 columns, then what they
// are multiplied with, so that one row reads one stream. Q8_0 and Q4_0: pairs of blocks, the quants of both and then
// their halves [2][16] of scales; a last block without a neighbour has its place. Types of sub-blocks: after each
// block's quants the floats [subs][16] of scales and, where the type has them, of minima. Types of super-blocks: the
// quants of eight blocks (their nibbles, then lines of high bits), their scales and minima as bytes [subs][16], then
// the halves [16] that these are multiplied with; padded to 64 bytes. Internal linkage throughout (see kernels.h).
#pragma once

#include "butterfly/kernel/packed/packed_type.h"

namespace butterfly {
namespace {

/// Of Q8_0 or Q4_0.
struct PackedPairs {
  bool nibbles;
  constexpr long quant_bytes() const { return (nibbles ? 16 : 32) * kPanel; }  // of a block
  constexpr long pair_bytes() const { return 2 * quant_bytes() + 4 * kPanel; }
  constexpr long quants_at(long block) const { return block * quant_bytes() + (block >> 1) * 4 * kPanel; }
  constexpr long scales_at(long block) const {
    return quants_at(block) + 2 * quant_bytes() - (block & 1) * (quant_bytes() - 2 * kPanel);
  }
  constexpr long panel_bytes(long blocks) const { return (blocks + 1) / 2 * pair_bytes(); }
};

/// Of kInt8: 16 floats, then blocks of 32 columns as those of Q8_0, an even number of them: AMX reads two at once.
struct PackedInt8 {
  static constexpr long kScaleBytes = 4 * kPanel;
  static constexpr long kBlockBytes = 32 * kPanel;
  static constexpr long quants_at(long block) { return kScaleBytes + block * kBlockBytes; }
  static constexpr long panel_bytes(long blocks) { return quants_at((blocks + 1) / 2 * 2); }
};

struct PackedSubBlocks {
  int size;  // elements of a sub-block
  bool minima;
  bool nibbles;
  bool shared = false;  // eight blocks are a super-block
  int high_bits = 0;    // of each quant, beside its nibble
  constexpr int subs() const { return 32 / size; }
  /// Whether a block's sub-blocks are added up before they meet x's scale.
  constexpr bool summed() const { return minima && subs() == 2; }
  /// Whether nibbles stand for what a table says.
  constexpr bool table() const { return nibbles && !minima && high_bits == 0; }
  /// Lines of 64 bytes with a byte for each quad's place: its high bits in eight quads, or in four.
  constexpr long high_bytes() const { return high_bits * 4 * kPanel; }
  constexpr long quant_bytes() const { return (nibbles ? 16 : 32) * kPanel + high_bytes(); }
  /// What follows the quants: [subs][16] of scales and then of minima.
  constexpr long scale_bytes() const { return (shared ? 1 : 4) * kPanel * subs() * (minima ? 2 : 1); }
  constexpr long group_bytes() const {
    return (8 * (quant_bytes() + scale_bytes()) + (minima ? 4 : 2) * kPanel + 63) / 64 * 64;
  }
  constexpr long panel_bytes(long blocks) const {
    return shared ? (blocks + 7) / 8 * group_bytes() : blocks * (quant_bytes() + scale_bytes());
  }
};

/// Where a block lies in its panel.
struct PackedBlock {
  const unsigned char* quants;
  const unsigned char* scales;
  const unsigned char* halves;  // of the super-block: [16] scales, [16] minima
  const unsigned char* ahead;   // this block's share of what one row reads
};

/// Bytes of a block's share.
constexpr long share_bytes(const PackedSubBlocks& form) {
  return form.panel_bytes(8) / 8;
}

inline __attribute__((always_inline)) PackedBlock block_in(const PackedSubBlocks& form, const unsigned char* panel,
                                                           long block) {
  if (!form.shared) {
    const unsigned char* at = panel + block * (form.quant_bytes() + form.scale_bytes());
    return {at, at + form.quant_bytes(), nullptr, at};
  }
  const unsigned char* group = panel + (block >> 3) * form.group_bytes();
  const unsigned char* scales = group + 8 * form.quant_bytes();
  return {group + (block & 7) * form.quant_bytes(), scales + (block & 7) * form.scale_bytes(),
          scales + 8 * form.scale_bytes(), group + (block & 7) * share_bytes(form)};
}

/// The scales of a sub-block's 16 outputs, `panels` bytes behind those of `at`.
template <class V, PackedSubBlocks kForm>
inline __attribute__((always_inline)) V sub_block_scales(const PackedBlock& at, long panels, int sub) {
  const unsigned char* scales = at.scales + panels;
  if constexpr (kForm.shared) {
    const auto* halves = reinterpret_cast<const unsigned short*>(at.halves + panels);
    return V::mul(V::load_half(halves), V::load_quants(scales + sub * kPanel));
  }
  return V::load(reinterpret_cast<const float*>(scales) + sub * kPanel);
}

template <class V, PackedSubBlocks kForm>
inline __attribute__((always_inline)) V sub_block_minima(const PackedBlock& at, long panels, int sub) {
  const unsigned char* scales = at.scales + panels;
  if constexpr (kForm.shared) {
    const auto* halves = reinterpret_cast<const unsigned short*>(at.halves + panels);
    return V::mul(V::load_half(halves + kPanel), V::load_quants(scales + (kForm.subs() + sub) * kPanel));
  }
  return V::load(reinterpret_cast<const float*>(scales) + (kForm.subs() + sub) * kPanel);
}

inline int sum_of(const BlockSums& sums) {
  return sums.lower + sums.upper;
}

template <int kSub>
inline int half_sum(const BlockSums& sums) {
  return kSub == 0 ? sums.lower : sums.upper;
}

constexpr bool is_sub_blocks(PackedType type) {
  return type >= PackedType::kBytes16;
}

/// is_sub_blocks(type).
constexpr PackedSubBlocks packed_sub_blocks(PackedType type) {
  switch (type) {
    case PackedType::kBytes16:
      return {.size = 16, .minima = false, .nibbles = false};
    case PackedType::kBytes32Min:
      return {.size = 32, .minima = true, .nibbles = false};
    case PackedType::kNibbles16:
      return {.size = 16, .minima = false, .nibbles = true};
    case PackedType::kNibbles16Min:
      return {.size = 16, .minima = true, .nibbles = true};
    case PackedType::kNibbles32Min:
      return {.size = 32, .minima = true, .nibbles = true};
    case PackedType::kQ2_K:
      return {.size = 16, .minima = true, .nibbles = true, .shared = true};
    case PackedType::kQ3_K:
      return {.size = 16, .minima = false, .nibbles = true, .shared = true};
    case PackedType::kQ4_K:
      return {.size = 32, .minima = true, .nibbles = true, .shared = true};
    case PackedType::kQ5_K:
      return {.size = 32, .minima = true, .nibbles = true, .shared = true, .high_bits = 1};
    case PackedType::kQ6_K:
      return {.size = 16, .minima = false, .nibbles = true, .shared = true, .high_bits = 2};
    case PackedType::kIQ4_XS:
      return {.size = 32, .minima = false, .nibbles = true, .shared = true};
    default:
      return {.size = 32, .minima = false, .nibbles = true};
  }
}

/// What several rows multiply super-blocks as: the same numbers in blocks whose scales are floats.
constexpr PackedType unpacked_type(PackedType type) {
  switch (type) {
    case PackedType::kQ2_K:
      return PackedType::kNibbles16Min;
    case PackedType::kQ3_K:
      return PackedType::kNibbles16;
    case PackedType::kQ4_K:
      return PackedType::kNibbles32Min;
    case PackedType::kQ5_K:
      return PackedType::kBytes32Min;
    case PackedType::kQ6_K:
      return PackedType::kBytes16;
    case PackedType::kIQ4_XS:
      return PackedType::kNibbles32;
    default:
      return type;
  }
}

constexpr bool is_super_blocks(PackedType type) {
  return unpacked_type(type) != type;
}

/// Panels that a tile has at most.
constexpr long kTilePanels = 2;

constexpr bool is_halves(PackedType type) {
  return type == PackedType::kF16 || type == PackedType::kBF16;
}

/// Of LinearArgs::scratch: a tile's panels unpacked. With AVX2, halves become floats there, where they fit the
/// second-level cache; without scratch they are multiplied as they lie.
constexpr long scratch_bytes(PackedType type, long cols) {
  if (is_halves(type)) return kTilePanels * 4 * kPanel * cols;
  if (!is_super_blocks(type)) return 0;
  return kTilePanels * packed_sub_blocks(unpacked_type(type)).panel_bytes(cols / 32);
}

/// Nibbles and high bits of a block become bytes of unpacked_type().
template <PackedSubBlocks kForm>
inline void unpack_bytes(const unsigned char* quants, unsigned char* to) {
  constexpr int kInLine = 8 / (kForm.high_bits > 0 ? kForm.high_bits : 8);  // quads
  constexpr int kMask = (1 << kForm.high_bits) - 1;
  constexpr int kOffset = kForm.high_bits == 2 ? 128 - 32 : 128;
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; ++quad) {
    const unsigned char* nibbles = quants + quad % 4 * 64;
    const unsigned char* high = quants + 16 * kPanel + quad / kInLine * 64;
    for (int i = 0; i < 64; ++i) {
      const int low = quad < 4 ? nibbles[i] & 15 : nibbles[i] >> 4;
      to[quad * 64 + i] =
          static_cast<unsigned char>((low | (high[i] >> quad % kInLine * kForm.high_bits & kMask) << 4) + kOffset);
    }
  }
}

constexpr long kCacheLine = 64;

/// Asks for as many bytes as there are from `block` on, for later: panels follow one another.
template <long kBytes>
inline __attribute__((always_inline)) void prefetch_block(const unsigned char* block, Prefetch how) {
  constexpr long kFarAhead = 8192;
  constexpr long kNearAhead = 768;
  if (how == Prefetch::kOneStep) {
#pragma GCC unroll 32
    for (long at = 0; at < kBytes; at += kCacheLine) __builtin_prefetch(block + kFarAhead + at);
  } else {
#pragma GCC unroll 32
    for (long at = 0; at < kBytes; at += kCacheLine) {
      __builtin_prefetch(block + kFarAhead + at, 0, 2);
      __builtin_prefetch(block + kNearAhead + at);
    }
  }
}

/// A panel of super-blocks in the layout of unpacked_type().
template <class V, PackedType kType>
void unpack_panel(const unsigned char* panel, long blocks, unsigned char* to) {
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  constexpr PackedSubBlocks kWide = packed_sub_blocks(unpacked_type(kType));
  for (long block = 0; block < blocks; ++block, to += kWide.panel_bytes(1)) {
    const PackedBlock at = block_in(kForm, panel, block);
    prefetch_block<share_bytes(kForm)>(at.ahead, Prefetch::kTwoSteps);
    if constexpr (kForm.high_bits > 0) {
      unpack_bytes<kForm>(at.quants, to);
    } else {
      __builtin_memcpy(to, at.quants, kWide.quant_bytes());
    }
    auto* floats = reinterpret_cast<float*>(to + kWide.quant_bytes());
    for (int sub = 0; sub < kForm.subs(); ++sub) {
      V::store(floats + sub * kPanel, sub_block_scales<V, kForm>(at, 0, sub));
      if constexpr (kForm.minima) {
        V::store(floats + (kForm.subs() + sub) * kPanel, sub_block_minima<V, kForm>(at, 0, sub));
      }
    }
  }
}

}  // namespace
}  // namespace butterfly
