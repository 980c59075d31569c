// AVX-512 (F, BW, DQ, VL) with VNNI: 16 floats are one register.
#include <immintrin.h>

#include "butterfly/kernel/inference/attention_inl.h"
#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/inference/int8_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

struct Vec {
  static constexpr int kAttentionRowsAtOnce = 8;
  static constexpr int kScoresAtOnce = 16;
  __m512 v;

  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load_first(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)};
  }
  static Vec load_half(const unsigned short* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec load_bf16(const unsigned short* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static Vec load_quants(const unsigned char* q) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q))))};
  }
  static float widen_half(unsigned short half) { return _cvtsh_ss(half); }
  static void store_half(unsigned char* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
  float largest() const { return _mm512_reduce_max_ps(v); }
  static Vec add_exponent(Vec p, Vec t) {
    return {_mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p.v), _mm512_slli_epi32(_mm512_castps_si512(t.v), 23)))};
  }
  static Vec zero_where_below(Vec value, Vec x, Vec limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
  }
  static BlockSums store_quants(Vec low, Vec high, signed char* q) {
    const __m512i a = round_quants(low.v);
    const __m512i b = round_quants(high.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + kPanel), _mm512_cvtepi32_epi8(b));
    return {_mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(b)};
  }
  /// Rounded half away from zero, at most 127; NaN gives 0.
  static void store_quants_away(Vec low, Vec high, unsigned char* q) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(round_away(low.v)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + kPanel), _mm512_cvtepi32_epi8(round_away(high.v)));
  }

 private:
  static __m512i round_away(__m512 x) {
    const __m512 number = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
    const __m512 clamped = _mm512_min_ps(_mm512_max_ps(number, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    const __m512 sign = _mm512_and_ps(clamped, _mm512_set1_ps(-0.0f));
    return _mm512_cvttps_epi32(_mm512_add_ps(clamped, _mm512_or_ps(sign, _mm512_set1_ps(kBelowHalf))));
  }
  static __m512i round_quants(__m512 x) {
    const __m512 clamped = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    return _mm512_cvtps_epi32(clamped);
  }
};

// Weights are stored unsigned, with 128 (or 8) added: VPDPBUSD multiplies unsigned by signed, and starting at
// -offset * sum(x) takes it out again, exactly.
template <PackedType kType>
constexpr int kPairOffset = kType == PackedType::kQ4_0 ? -8 : -128;

/// Gathered: the lower is where the products of a block begin.
template <PackedType kType>
BlockSums pair_sums(const signed char*, const BlockSums& sums) {
  return {kPairOffset<kType> * sum_of(sums), sums.upper};
}

template <PackedType kType, int M, int N, RowOrder kOrder>
inline __attribute__((always_inline)) void add_quant_block(const LinearArgs& a, const unsigned char* w, long row,
                                                           long block, Vec (&acc)[M][N]) {
  constexpr bool kNibbles = kType == PackedType::kQ4_0;
  constexpr PackedPairs kForm{.nibbles = kNibbles};
  const RowsOfBlock<kOrder, M> x(a, row, block);
  const __m512i low_mask = _mm512_set1_epi8(15);
  __m512i dot[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    const BlockSums& sums = x.sums[m * x.stride];
    const __m512i start =
        _mm512_set1_epi32(kOrder == RowOrder::kGathered ? sums.lower : kPairOffset<kType> * sum_of(sums));
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) dot[m][n] = start;
  }
  // One step takes 4 k of 16 rows; nibbles bring k and k + 16 in one byte.
#pragma GCC unroll 8
  for (int step = 0; step < (kNibbles ? 4 : 8); ++step) {
    __m512i first[N];
    __m512i second[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const unsigned char* at = w + n * a.panel_stride + kForm.quants_at(block) + step * 64;
      first[n] = _mm512_loadu_si512(at);
      if constexpr (kNibbles) {
        second[n] = _mm512_and_si512(_mm512_srli_epi16(first[n], 4), low_mask);
        first[n] = _mm512_and_si512(first[n], low_mask);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const signed char* values = x.quants + m * x.stride * 32 + step * 4;
      int quad;
      __builtin_memcpy(&quad, values, 4);
      const __m512i quads = _mm512_set1_epi32(quad);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) dot[m][n] = _mm512_dpbusd_epi32(dot[m][n], first[n], quads);
      if constexpr (kNibbles) {
        int upper;
        __builtin_memcpy(&upper, values + 16, 4);
        const __m512i uppers = _mm512_set1_epi32(upper);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) dot[m][n] = _mm512_dpbusd_epi32(dot[m][n], second[n], uppers);
      }
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const unsigned char* scales = w + n * a.panel_stride + kForm.scales_at(block);
    const __m512 w_scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(x.scales[m * x.stride]));
      acc[m][n].v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m][n]), scale, acc[m][n].v);
    }
  }
}

/// kFew: so few rows that weights do not come as fast as they are computed with.
template <PackedType kType, int M, int N, bool kFew = M == 1, RowOrder kOrder = RowOrder::kApart>
inline __attribute__((always_inline)) float* quant_slice(const LinearArgs& a, long row, long panel,
                                                         const SliceStep& step, float* top) {
  constexpr PackedPairs kForm{.nibbles = kType == PackedType::kQ4_0};
  Vec acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  for (long block = step.begin / 32; block < step.end / 32; ++block) {
    // Half of a pair and the line that the halves meet in.
    if constexpr (kFew) prefetch_block<kForm.quant_bytes() + kCacheLine>(w + kForm.quants_at(block), a.prefetch);
    add_quant_block<kType, M, N, kOrder>(a, w, row, block, acc);
  }
  return push_sums(acc, step.adds, top);
}

/// What is added to quants so that they are unsigned: nothing where nibbles stand for themselves.
template <PackedType kType>
constexpr int kQuantOffset = packed_sub_blocks(kType).high_bits == 2                               ? 32
                             : packed_sub_blocks(kType).nibbles && packed_sub_blocks(kType).minima ? 0
                                                                                                   : 128;

/// Of a block whose quants have more than a nibble: its lines of high bits.
template <PackedType kType>
struct HighBits {
  static constexpr int kBits = packed_sub_blocks(kType).high_bits;
  explicit HighBits(const unsigned char* quants) {
    for (int i = 0; i < kBits; ++i) lines[i] = _mm512_loadu_si512(quants + 16 * kPanel + i * 64);
  }
  /// With the nibbles of a quad.
  inline __attribute__((always_inline)) __m512i with(__m512i nibbles, int quad) const {
    if constexpr (kBits == 0) return nibbles;
    const __m512i line = lines[kBits == 2 ? quad / 4 : 0];
    const int left = kBits == 2 ? 4 - 2 * (quad % 4) : 4 - quad;
    const __m512i moved = left >= 0 ? _mm512_slli_epi16(line, static_cast<unsigned>(left > 0 ? left : 0))
                                    : _mm512_srli_epi16(line, static_cast<unsigned>(left > 0 ? 0 : -left));
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(nibbles, moved, _mm512_set1_epi8(kBits == 2 ? 0x30 : 0x10), kOrAnd);
  }
  __m512i lines[kBits > 0 ? kBits : 1];
};

/// 4 k of 16 outputs; the upper nibbles of the first 4 quads are the last 4.
template <PackedType kType>
inline __attribute__((always_inline)) __m512i unsigned_quants(const unsigned char* quants, int quad, __m512i table,
                                                              const HighBits<kType>& high) {
  constexpr bool kNibbles = packed_sub_blocks(kType).nibbles;
  __m512i weights = _mm512_loadu_si512(quants + (kNibbles ? quad % 4 : quad) * 64);
  if constexpr (kNibbles) {
    if (quad >= 4) weights = _mm512_srli_epi16(weights, 4);
    weights = _mm512_and_si512(weights, _mm512_set1_epi8(15));
    if constexpr (packed_sub_blocks(kType).table()) weights = _mm512_shuffle_epi8(table, weights);
  }
  return high.with(weights, quad);
}

/// acc += what one sub-block's dot products give.
template <PackedSubBlocks kForm, int kSub, RowOrder kOrder, int M, int N>
inline __attribute__((always_inline)) void add_to_chain(const LinearArgs& a, const PackedBlock& at,
                                                        const RowsOfBlock<kOrder, M>& x, const __m512i (&dot)[M][N],
                                                        Vec (&acc)[M][N]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const __m512 w_scale = sub_block_scales<Vec, kForm>(at, n * a.panel_stride, kSub).v;
    __m512 w_min = _mm512_setzero_ps();
    if constexpr (kForm.minima) w_min = sub_block_minima<Vec, kForm>(at, n * a.panel_stride, kSub).v;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512 x_scale = _mm512_set1_ps(x.scales[m * x.stride]);
      acc[m][n].v = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m][n]), _mm512_mul_ps(w_scale, x_scale), acc[m][n].v);
      if constexpr (kForm.minima) {
        const __m512 sum = _mm512_set1_ps(static_cast<float>(sum_of(x.sums[m * x.stride])));
        acc[m][n].v = _mm512_fnmadd_ps(sum, _mm512_mul_ps(w_min, x_scale), acc[m][n].v);
      }
    }
  }
}

/// The same into the sum of a block of two, which x's scale is still to be multiplied with.
template <PackedSubBlocks kForm, int kSub, RowOrder kOrder, int M, int N>
inline __attribute__((always_inline)) void add_to_block(const LinearArgs& a, const PackedBlock& at,
                                                        const RowsOfBlock<kOrder, M>& x, const __m512i (&dot)[M][N],
                                                        Vec (&block_sum)[M][N]) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    const __m512 w_scale = sub_block_scales<Vec, kForm>(at, n * a.panel_stride, kSub).v;
    const __m512 w_min = sub_block_minima<Vec, kForm>(at, n * a.panel_stride, kSub).v;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512 dots = _mm512_cvtepi32_ps(dot[m][n]);
      const __m512 x_sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(half_sum<kSub>(x.sums[m * x.stride])));
      __m512& sum = block_sum[m][n].v;
      sum = kSub == 0 ? _mm512_mul_ps(dots, w_scale) : _mm512_fmadd_ps(dots, w_scale, sum);
      sum = _mm512_fnmadd_ps(x_sum, w_min, sum);
    }
  }
}

/// One sub-block of a block of 32, which in the first panel is `at`. Quants are unsigned, as in add_quant_block; by the
/// table of nibbles as well.
template <PackedType kType, int kSub, RowOrder kOrder, int M, int N>
inline __attribute__((always_inline)) void add_sub_block(const LinearArgs& a, const PackedBlock& at,
                                                         const RowsOfBlock<kOrder, M>& x, __m512i table,
                                                         Vec (&block_sum)[M][N], Vec (&acc)[M][N]) {
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  constexpr int kQuads = kForm.size / 4;
  constexpr int kOffset = kQuantOffset<kType>;
  __m512i dot[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
    __m512i start = _mm512_setzero_si512();
    if constexpr (kOffset != 0) {
      const BlockSums& sums = x.sums[m * x.stride];
      start = _mm512_set1_epi32(-kOffset * (kForm.size == 32 ? sum_of(sums) : half_sum<kSub>(sums)));
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) dot[m][n] = start;
  }
#pragma GCC unroll 8
  for (int quad = kSub * kQuads; quad < (kSub + 1) * kQuads; ++quad) {
    __m512i weights[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const unsigned char* quants = at.quants + n * a.panel_stride;
      weights[n] = unsigned_quants<kType>(quants, quad, table, HighBits<kType>(quants));
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      int four;
      __builtin_memcpy(&four, x.quants + m * x.stride * 32 + quad * 4, 4);
      const __m512i quads = _mm512_set1_epi32(four);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) dot[m][n] = _mm512_dpbusd_epi32(dot[m][n], weights[n], quads);
    }
  }
  if constexpr (kForm.summed()) {
    add_to_block<kForm, kSub>(a, at, x, dot, block_sum);
  } else {
    add_to_chain<kForm, kSub>(a, at, x, dot, acc);
  }
}

template <PackedType kType, int M, int N, RowOrder kOrder = RowOrder::kApart>
inline __attribute__((always_inline)) float* sub_block_slice(const LinearArgs& a, long row, long panel,
                                                             const SliceStep& step, float* top) {
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  __m512i table = _mm512_setzero_si512();
  if constexpr (kForm.table()) {
    const __m128i quants = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a.nibble_quants));
    table = _mm512_broadcast_i32x4(_mm_xor_si128(quants, _mm_set1_epi8(-128)));
  }
  Vec acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  for (long block = step.begin / 32; block < step.end / 32; ++block) {
    const PackedBlock at = block_in(kForm, w, block);
    if constexpr (M == 1 || is_super_blocks(kType)) prefetch_block<share_bytes(kForm)>(at.ahead, a.prefetch);
    const RowsOfBlock<kOrder, M> x(a, row, block);
    Vec block_sum[M][N];
    add_sub_block<kType, 0>(a, at, x, table, block_sum, acc);
    if constexpr (kForm.subs() == 2) add_sub_block<kType, 1>(a, at, x, table, block_sum, acc);
    if constexpr (kForm.summed()) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[m][n] = Vec::fma(block_sum[m][n], Vec::set1(x.scales[m * x.stride]), acc[m][n]);
      }
    }
  }
  return push_sums(acc, step.adds, top);
}

template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 2> float_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<gathered_float_slice<Vec, kType, M, 1>, M>,
            all_slices<gathered_float_slice<Vec, kType, M, 2>, M>}...}};
}
template <PackedType kType>
constexpr auto kFloatTable = float_tiles<kType>(UpTo<12>());
constexpr TileTable<1, 1> kOneFloatRow = {{{all_slices<float_slice<Vec, PackedType::kF32, 1, 1>, 1>}}};

/// Tile functions of quantised weights: of one row, and of gathered ones, up to 6 over two panels. A few rows pass by a
/// panel at once, so that each weight is unpacked once.
constexpr RowOrder kGathered = RowOrder::kGathered;
constexpr PackedType kAsItLies = PackedType::kF32;  // of linear_tiles(): nothing is unpacked

template <PackedType kType>
constexpr TileTable<1, 1> kOneQuantRow = {{{all_slices<quant_slice<kType, 1, 1>, 1>}}};
template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 2> quant_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<quant_slice<kType, M, 1, false, kGathered>, M, SliceCode::kInLoop>,
            all_slices<quant_slice<kType, M, 2, false, kGathered>, M, SliceCode::kInLoop>}...}};
}
template <PackedType kType>
constexpr auto kQuantTable = quant_tiles<kType>(UpTo<6>());
template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 1> few_quant_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<quant_slice<kType, M, 1, true, kGathered>, M, SliceCode::kInLoop>}...}};
}
template <PackedType kType>
constexpr auto kFewQuantRowsTable = few_quant_tiles<kType>(UpTo<12>());

template <PackedType kType>
constexpr TileTable<1, 1> kOneSubBlockRow = {{{all_slices<sub_block_slice<kType, 1, 1>, 1>}}};
template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 2> sub_block_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<sub_block_slice<kType, M, 1, kGathered>, M>,
            all_slices<sub_block_slice<kType, M, 2, kGathered>, M>}...}};
}
template <PackedType kType>
constexpr auto kSubBlockTable = sub_block_tiles<kType>(UpTo<6>());

/// Of kInt8: 4 k of 16 outputs, unsigned, and their products with 4 k of a row, which begin at -128 * sum(x).
struct Ints {
  struct Quad {
    __m512i bytes;
  };
  __m512i sums;
  static Ints start(int x_sum) { return {_mm512_set1_epi32(-128 * x_sum)}; }
  static Quad load(const unsigned char* at) { return {_mm512_loadu_si512(at)}; }
  void add(const Quad& weights, int four) { sums = _mm512_dpbusd_epi32(sums, weights.bytes, _mm512_set1_epi32(four)); }
  void add(const Ints& other) { sums = _mm512_add_epi32(sums, other.sums); }
  Vec floats() const { return {_mm512_cvtepi32_ps(sums)}; }
};

constexpr TileTable<1, 1> kOneInt8Row = {{{all_slices<int8_slice<Vec, Ints, 1, 1>, 1>}}};
template <int... M>
constexpr TileTable<sizeof...(M), 2> int8_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<int8_slice<Vec, Ints, M, 1, false, kGathered>, M, SliceCode::kInLoop>,
            all_slices<int8_slice<Vec, Ints, M, 2, false, kGathered>, M, SliceCode::kInLoop>}...}};
}
constexpr auto kInt8Table = int8_tiles(UpTo<6>());
template <int... M>
constexpr TileTable<sizeof...(M), 1> few_int8_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<int8_slice<Vec, Ints, M, 1, true, kGathered>, M, SliceCode::kInLoop>}...}};
}
constexpr auto kFewInt8RowsTable = few_int8_tiles(UpTo<12>());

void linear_int8(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneInt8Row, a.cols);
  if (a.rows <= kFewInt8RowsTable.kRows) return linear_tiles<Vec, kAsItLies, kGathered>(a, kFewInt8RowsTable, a.cols);
  linear_tiles<Vec, kAsItLies, kGathered>(a, kInt8Table, a.cols);
}

template <PackedType kType>
void linear_quants(const LinearArgs& a) {
  constexpr TileSums kSums = pair_sums<kType>;
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneQuantRow<kType>, a.cols);
  if (a.rows <= kFewQuantRowsTable<kType>.kRows) {
    return linear_tiles<Vec, kAsItLies, kGathered, kSums>(a, kFewQuantRowsTable<kType>, a.cols);
  }
  linear_tiles<Vec, kAsItLies, kGathered, kSums>(a, kQuantTable<kType>, a.cols);
}

template <PackedType kType>
void linear_sub_blocks(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneSubBlockRow<kType>, a.cols);
  linear_tiles<Vec, kAsItLies, kGathered>(a, kSubBlockTable<kType>, a.cols);
}

/// A tile's rows read super-blocks as they lie in memory.
template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 1> few_super_block_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<sub_block_slice<kType, M, 1, kGathered>, M>}...}};
}
template <PackedType kType>
constexpr auto kFewRowsTable = few_super_block_tiles<kType>(UpTo<8>());

template <PackedType kType>
void linear_super_blocks(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneSubBlockRow<kType>, a.cols);
  if (a.rows <= 2 * kFewRowsTable<kType>.kRows) {
    return linear_tiles<Vec, kAsItLies, kGathered>(a, kFewRowsTable<kType>, a.cols);
  }
  linear_tiles<Vec, kType, kGathered>(a, kSubBlockTable<unpacked_type(kType)>, a.cols);
}

constexpr RowOrder kGatheredFloats = RowOrder::kGatheredFloats;

void linear_floats(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneFloatRow, a.cols * 4);
  linear_tiles<Vec, kAsItLies, kGatheredFloats>(a, kFloatTable<PackedType::kF32>, a.cols * 4);
}

template <PackedType kType>
void linear_halves(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneRowOfHalves<Vec, kType>, a.cols * 4);
  linear_tiles<Vec, kAsItLies, kGatheredFloats>(a, kFloatTable<kType>, a.cols * 4);
}

void linear(const LinearArgs& a) {
  switch (a.type) {
    case PackedType::kF32:
      return linear_floats(a);
    case PackedType::kF16:
      return linear_halves<PackedType::kF16>(a);
    case PackedType::kBF16:
      return linear_halves<PackedType::kBF16>(a);
    case PackedType::kQ8_0:
      return linear_quants<PackedType::kQ8_0>(a);
    case PackedType::kQ4_0:
      return linear_quants<PackedType::kQ4_0>(a);
    case PackedType::kInt8:
      return linear_int8(a);
    case PackedType::kBytes16:
      return linear_sub_blocks<PackedType::kBytes16>(a);
    case PackedType::kBytes32Min:
      return linear_sub_blocks<PackedType::kBytes32Min>(a);
    case PackedType::kNibbles16:
      return linear_sub_blocks<PackedType::kNibbles16>(a);
    case PackedType::kNibbles16Min:
      return linear_sub_blocks<PackedType::kNibbles16Min>(a);
    case PackedType::kNibbles32:
      return linear_sub_blocks<PackedType::kNibbles32>(a);
    case PackedType::kNibbles32Min:
      return linear_sub_blocks<PackedType::kNibbles32Min>(a);
    case PackedType::kQ2_K:
      return linear_super_blocks<PackedType::kQ2_K>(a);
    case PackedType::kQ3_K:
      return linear_super_blocks<PackedType::kQ3_K>(a);
    case PackedType::kQ4_K:
      return linear_super_blocks<PackedType::kQ4_K>(a);
    case PackedType::kQ5_K:
      return linear_super_blocks<PackedType::kQ5_K>(a);
    case PackedType::kQ6_K:
      return linear_super_blocks<PackedType::kQ6_K>(a);
    case PackedType::kIQ4_XS:
      return linear_super_blocks<PackedType::kIQ4_XS>(a);
  }
}

}  // namespace

constinit const Kernels kAvx512Kernels = {
    .name = "avx512",
    .linear = linear,
    .fold = fold_row,
    .quantize_row = quantize_row_simd<Vec>,
    .attention = attention_simd<Vec>,
    .rms_norm = rms_norm_simd<Vec>,
    .layer_norm = layer_norm_simd<Vec>,
    .rope = rope_row,
    .silu_mul = silu_mul_row,
    .gelu_mul = gelu_mul_row,
    .silu = silu_row,
    .gelu = gelu_row,
    .relu = relu_row,
    .gelu_erf = gelu_erf_row,
    .gelu_erf_mul = gelu_erf_mul_row,
    .clamped_swiglu = clamped_swiglu_row,
    .scale = scale_row,
    .soft_cap = soft_cap_row,
    .add = add_row,
    .add_scaled = add_scaled_row,
    .softmax = softmax_row,
    .sigmoid = sigmoid_row,
    .store_key = store_key_simd<Vec>,
    .store_value = store_value_simd<Vec>,
    .floats_to_halves = floats_to_halves_simd<Vec>,
    .halves_to_floats = halves_to_floats_simd<Vec>,
    .floats_to_q8_0 = floats_to_q8_0_simd<Vec>,
    .q8_0_to_floats = q8_0_to_floats_simd<Vec>,
};

}  // namespace butterfly
