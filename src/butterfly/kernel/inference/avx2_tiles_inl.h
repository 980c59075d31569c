// Matmuls of several rows with quantised weights on AVX2: tiles of gathered rows over one panel, block by block.
// Internal linkage throughout (see kernels.h).
//
// VPMADDUBSW multiplies unsigned quants with those of x, up to 127, and adds pairs in 16 bits, with saturation. What 16
// bits hold is added up there, and becomes 32 once for each sub-block. Sums wrap around on the way: only what they come
// to has to fit.
#pragma once

#include <immintrin.h>

#include "butterfly/kernel/inference/avx2_vec_inl.h"
#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/inference/linear_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

/// How the quants of a type are multiplied.
struct Products {
  bool sizes = false;  // quants of 8 bits: |w| times x with w's sign, each pair widened alone
  int offset = 0;      // is added to quants, which are unsigned then: from 0 to 63
  bool again = false;  // quants from 0 to 31 whose offset is only for the sums in 16 bits, and is put back in 32
};

/// Nibbles of tables that are larger than 12 are of 8 bits.
constexpr Products products_of(PackedType type, bool large_table) {
  if (type == PackedType::kQ8_0) return {.sizes = true};
  if (type == PackedType::kQ4_0) return {.offset = 8};
  const PackedSubBlocks form = packed_sub_blocks(type);
  if (form.table()) return large_table ? Products{.sizes = true} : Products{.offset = 12};
  if (!form.minima) return {.offset = 32};
  return form.nibbles && form.high_bits == 0 ? Products{} : Products{.offset = 16, .again = true};
}

constexpr bool is_pairs(PackedType type) {
  return type == PackedType::kQ8_0 || type == PackedType::kQ4_0;
}

constexpr PackedSubBlocks tile_form(PackedType type) {
  if (is_pairs(type)) return {.size = 32, .minima = false, .nibbles = type == PackedType::kQ4_0};
  return packed_sub_blocks(type);
}

/// What an offset gives in a register of 16 bit sums, whose neighbours have the first and the last two of each four
/// columns: of half a block.
inline int lane_offsets(const signed char* quants, int offset) {
  int first = 0, last = 0;
  for (int i = 0; i < 16; i += 4) {
    first += quants[i] + quants[i + 1];
    last += quants[i + 2] + quants[i + 3];
  }
  return static_cast<int>(static_cast<unsigned>(last * offset) << 16 |
                          (static_cast<unsigned>(first * offset) & 0xffff));
}

inline int bits_of(int sum) {
  const auto value = static_cast<float>(sum);
  int bits = 0;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline int add_lanes(int a, int b) {
  const auto x = static_cast<unsigned>(a), y = static_cast<unsigned>(b);
  return static_cast<int>(((x & 0xffff0000) + (y & 0xffff0000)) | ((x + y) & 0xffff));
}

/// What a tile reads of a block of x: with minima the sums of its sub-blocks as floats, else what is to be taken from
/// those in 16 bits; a block of one sub-block with both has the latter as its second.
template <PackedType kType>
BlockSums tile_sums(const signed char* quants, const BlockSums& sums) {
  constexpr PackedSubBlocks kForm = tile_form(kType);
  constexpr Products kProducts = products_of(kType, false);
  const int lower = lane_offsets(quants, kProducts.offset), upper = lane_offsets(quants + 16, kProducts.offset);
  if constexpr (kForm.summed()) return {bits_of(sums.lower), bits_of(sums.upper)};
  if constexpr (kForm.minima) return {bits_of(sum_of(sums)), add_lanes(lower, upper)};
  if constexpr (kForm.size == 32) return {add_lanes(lower, upper), 0};
  return {lower, upper};
}

/// The high bits of a quad, above its nibbles: 8 outputs of 4 k.
template <int kBits>
inline __attribute__((always_inline)) __m256i high_bits(const unsigned char* lines, int quad) {
  const __m256i line = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + (kBits == 2 ? quad / 4 * 64 : 0)));
  const int left = kBits == 2 ? 4 - 2 * (quad % 4) : 4 - quad;
  const __m256i moved =
      left >= 0 ? _mm256_slli_epi16(line, left > 0 ? left : 0) : _mm256_srli_epi16(line, left > 0 ? 0 : -left);
  return _mm256_and_si256(moved, _mm256_set1_epi8(kBits == 2 ? 0x30 : 0x10));
}

/// 8 outputs of 4 k of the block at `quants`, those from `output` on, with the type's offset; signed where products are
/// by sizes. A table has the offset in it.
template <PackedType kType, Products kProducts>
inline __attribute__((always_inline)) __m256i tile_quants(const unsigned char* quants, int quad, int output,
                                                          __m256i table) {
  constexpr PackedSubBlocks kForm = tile_form(kType);
  const unsigned char* at = quants + (kForm.nibbles ? quad % 4 : quad) * 64 + output * 4;
  const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  if constexpr (!kForm.nibbles) {
    constexpr int kStored = 128;
    if constexpr (kProducts.sizes || kProducts.again) return _mm256_xor_si256(stored, _mm256_set1_epi8(-kStored));
    return _mm256_sub_epi8(stored, _mm256_set1_epi8(kStored - kProducts.offset));
  }
  const __m256i nibbles = _mm256_and_si256(quad >= 4 ? _mm256_srli_epi16(stored, 4) : stored, _mm256_set1_epi8(15));
  if constexpr (kForm.table() && !is_pairs(kType)) return _mm256_shuffle_epi8(table, nibbles);
  if constexpr (kForm.high_bits > 0) {
    return _mm256_or_si256(nibbles, high_bits<kForm.high_bits>(quants + 16 * kPanel + output * 4, quad));
  }
  return nibbles;
}

/// sum += products, here and now: the compiler would rather add integers as a tree, and keep all products until then in
/// memory.
inline __attribute__((always_inline)) void add_words(__m256i& sum, __m256i products) {
  sum = _mm256_add_epi16(sum, products);
  asm("" : "+x"(sum));
}
inline __attribute__((always_inline)) void add_ints(__m256i& sum, __m256i products) {
  sum = _mm256_add_epi32(sum, products);
  asm("" : "+x"(sum));
}

inline __attribute__((always_inline)) __m256i four_of(const signed char* x) {
  int four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}

/// The dot products of M rows with one sub-block of 16 outputs.
template <PackedType kType, Products kProducts, int kSub, int M>
inline __attribute__((always_inline)) void sub_block_dots(const unsigned char* quants, const signed char* x,
                                                          const BlockSums* sums, __m256i table, __m256i (&dot)[M][2]) {
  constexpr PackedSubBlocks kForm = tile_form(kType);
  constexpr int kQuads = kForm.size / 4;
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) dot[m][0] = dot[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int quad = kSub * kQuads; quad < (kSub + 1) * kQuads; ++quad) {
    const __m256i left = tile_quants<kType, kProducts>(quants, quad, 0, table);
    const __m256i right = tile_quants<kType, kProducts>(quants, quad, 8, table);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m256i four = four_of(x + m * 32 + quad * 4);
      if constexpr (kProducts.sizes) {
        const __m256i first = _mm256_maddubs_epi16(_mm256_abs_epi8(left), _mm256_sign_epi8(four, left));
        const __m256i second = _mm256_maddubs_epi16(_mm256_abs_epi8(right), _mm256_sign_epi8(four, right));
        add_ints(dot[m][0], _mm256_madd_epi16(first, ones));
        add_ints(dot[m][1], _mm256_madd_epi16(second, ones));
      } else {
        add_words(dot[m][0], _mm256_maddubs_epi16(left, four));
        add_words(dot[m][1], _mm256_maddubs_epi16(right, four));
      }
    }
  }
  if constexpr (kProducts.sizes) return;
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    if constexpr (kProducts.offset != 0) {
      const __m256i offsets = _mm256_set1_epi32(kSub == 0 && !kForm.minima ? sums[m].lower : sums[m].upper);
      dot[m][0] = _mm256_sub_epi16(dot[m][0], offsets);
      dot[m][1] = _mm256_sub_epi16(dot[m][1], offsets);
    }
    dot[m][0] = _mm256_madd_epi16(dot[m][0], ones);
    dot[m][1] = _mm256_madd_epi16(dot[m][1], ones);
  }
}

/// from - factor * minimum.
inline __attribute__((always_inline)) Vec subtract(__m256 factor, Vec minimum, Vec from) {
  return {_mm256_fnmadd_ps(factor, minimum.a, from.a), _mm256_fnmadd_ps(factor, minimum.b, from.b)};
}

inline __attribute__((always_inline)) __m256 float_of(const int& bits) {
  return _mm256_broadcast_ss(reinterpret_cast<const float*>(&bits));
}

template <PackedType kType>
inline __attribute__((always_inline)) PackedBlock tile_block(const unsigned char* w, long block) {
  if constexpr (is_pairs(kType)) {
    constexpr PackedPairs kPairs{.nibbles = kType == PackedType::kQ4_0};
    const unsigned char* quants = w + kPairs.quants_at(block);
    return {quants, w + kPairs.scales_at(block), nullptr, quants};
  }
  return block_in(packed_sub_blocks(kType), w, block);
}

/// One sub-block of a block: acc += what its dot products give. Sub-blocks that are added up first go to block_sum.
template <PackedType kType, Products kProducts, int kSub, int M>
inline __attribute__((always_inline)) void add_tile_sub_block(const PackedBlock& at,
                                                              const RowsOfBlock<RowOrder::kGathered, M>& x,
                                                              __m256i table, Vec (&block_sum)[M], Vec (&acc)[M][1]) {
  constexpr PackedSubBlocks kForm = tile_form(kType);
  __m256i dot[M][2];
  sub_block_dots<kType, kProducts, kSub, M>(at.quants, x.quants, x.sums, table, dot);
  Vec w_scale;
  Vec w_min = Vec::set1(0.0f);
  if constexpr (is_pairs(kType)) {
    w_scale = Vec::load_half(reinterpret_cast<const unsigned short*>(at.scales));
  } else {
    w_scale = sub_block_scales<Vec, kForm>(at, 0, kSub);
    if constexpr (kForm.minima) w_min = sub_block_minima<Vec, kForm>(at, 0, kSub);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    Vec dots = {_mm256_cvtepi32_ps(dot[m][0]), _mm256_cvtepi32_ps(dot[m][1])};
    const int& sum = kSub == 0 ? x.sums[m].lower : x.sums[m].upper;
    if constexpr (kForm.summed()) {
      const Vec scaled = kSub == 0 ? Vec::mul(dots, w_scale) : Vec::fma(dots, w_scale, block_sum[m]);
      block_sum[m] = subtract(float_of(sum), w_min, scaled);
      continue;
    }
    if constexpr (kProducts.again) {  // integers that floats hold
      const __m256 offset = _mm256_set1_ps(static_cast<float>(kProducts.offset));
      dots = {_mm256_fmadd_ps(float_of(sum), offset, dots.a), _mm256_fmadd_ps(float_of(sum), offset, dots.b)};
    }
    const Vec x_scale = Vec::set1(x.scales[m]);
    acc[m][0] = Vec::fma(dots, Vec::mul(w_scale, x_scale), acc[m][0]);
    if constexpr (kForm.minima) acc[m][0] = subtract(float_of(sum), Vec::mul(w_min, x_scale), acc[m][0]);
  }
}

/// kFew: so few rows that weights do not come as fast as they are computed with.
template <PackedType kType, int M, bool kFew, bool kLargeTable = false>
inline __attribute__((always_inline)) float* tile_slice(const LinearArgs& a, long row, long panel,
                                                        const SliceStep& step, float* top) {
  constexpr PackedSubBlocks kForm = tile_form(kType);
  constexpr Products kProducts = products_of(kType, kLargeTable);
  __m256i table = _mm256_setzero_si256();
  if constexpr (kForm.table() && !is_pairs(kType)) {
    table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a.nibble_quants)));
    table = _mm256_add_epi8(table, _mm256_set1_epi8(kProducts.offset));
  }
  Vec acc[M][1];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  for (long block = step.begin / 32; block < step.end / 32; ++block) {
    const PackedBlock at = tile_block<kType>(w, block);
    if constexpr (kFew && is_pairs(kType)) prefetch_block<kForm.quant_bytes() + kCacheLine>(at.quants, a.prefetch);
    if constexpr (kFew && !is_pairs(kType)) prefetch_block<share_bytes(kForm)>(at.ahead, a.prefetch);
    const RowsOfBlock<RowOrder::kGathered, M> x(a, row, block);
    Vec block_sum[M];
    add_tile_sub_block<kType, kProducts, 0, M>(at, x, table, block_sum, acc);
    if constexpr (kForm.subs() == 2) add_tile_sub_block<kType, kProducts, 1, M>(at, x, table, block_sum, acc);
    if constexpr (kForm.summed()) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) acc[m][0] = Vec::fma(block_sum[m], Vec::set1(x.scales[m]), acc[m][0]);
    }
  }
  return push_sums(acc, step.adds, top);
}

}  // namespace
}  // namespace butterfly
