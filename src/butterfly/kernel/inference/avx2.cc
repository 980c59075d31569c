// AVX2 with FMA and F16C: 16 floats are two registers, every operation is done on both halves.
#include <immintrin.h>

#include "butterfly/kernel/inference/attention_inl.h"
#include "butterfly/kernel/inference/int8_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

struct Vec {
  static constexpr int kAttentionRowsAtOnce = 4;
  static constexpr int kScoresAtOnce = 4;
  __m256 a, b;

  static Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec load_first(const float* p, int n) {
    alignas(32) float values[kPanel] = {};
    for (int i = 0; i < n; ++i) values[i] = p[i];
    return load(values);
  }
  static Vec load_half(const unsigned short* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Vec load_bf16(const unsigned short* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
  static Vec load_quants(const unsigned char* q) { return {widen_quants(q), widen_quants(q + 8)}; }
  static float widen_half(unsigned short half) { return _cvtsh_ss(half); }
  static void store_half(unsigned char* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store(float* p, Vec x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static Vec fma(Vec x, Vec y, Vec z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static Vec sub(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static Vec abs(Vec x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }
  float largest() const {
    const __m256 both = _mm256_max_ps(a, b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
  static Vec add_exponent(Vec p, Vec t) { return {shift_in(p.a, t.a), shift_in(p.b, t.b)}; }
  static Vec zero_where_below(Vec value, Vec x, Vec limit) {
    return {_mm256_and_ps(value.a, _mm256_cmp_ps(x.a, limit.a, _CMP_NLT_UQ)),
            _mm256_and_ps(value.b, _mm256_cmp_ps(x.b, limit.b, _CMP_NLT_UQ))};
  }
  static BlockSums store_quants(Vec low, Vec high, signed char* q) {
    const __m256i words_low = _mm256_packs_epi32(round_quants(low.a), round_quants(low.b));
    const __m256i words_high = _mm256_packs_epi32(round_quants(high.a), round_quants(high.b));
    store_bytes(words_low, words_high, reinterpret_cast<unsigned char*>(q));
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i sums = _mm256_hadd_epi32(_mm256_madd_epi16(words_low, ones), _mm256_madd_epi16(words_high, ones));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));  // lower, lower, upper, upper
    return {_mm_cvtsi128_si32(four), _mm_extract_epi32(four, 2)};
  }
  /// Rounded half away from zero, at most 127; NaN gives 0.
  static void store_quants_away(Vec low, Vec high, unsigned char* q) {
    store_bytes(_mm256_packs_epi32(round_away(low.a), round_away(low.b)),
                _mm256_packs_epi32(round_away(high.a), round_away(high.b)), q);
  }

 private:
  static void store_bytes(__m256i words_low, __m256i words_high, unsigned char* q) {
    // Packing works within 128-bit halves; the permutation restores the order.
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words_low, words_high),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  }
  static __m256 widen_quants(const unsigned char* q) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))));
  }
  static __m256i round_away(__m256 x) {
    const __m256 number = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
    const __m256 clamped = _mm256_min_ps(_mm256_max_ps(number, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    const __m256 sign = _mm256_and_ps(clamped, _mm256_set1_ps(-0.0f));
    return _mm256_cvttps_epi32(_mm256_add_ps(clamped, _mm256_or_ps(sign, _mm256_set1_ps(kBelowHalf))));
  }
  static __m256 widen_bf16(const unsigned short* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static __m256 shift_in(__m256 p, __m256 t) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
  }
  static __m256i round_quants(__m256 x) {
    const __m256 clamped = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
    return _mm256_cvtps_epi32(clamped);
  }
};

// VPMADDUBSW adds two matmuls in 16 bits with saturation. Nibbles (0..15 times +-127) never come near it, and eight
// such pairs still fit. Bytes are multiplied as |w| times x with w's sign: 128 * 127 * 2 = 32512 fits.
template <PackedType kType>
struct Dot {
  __m256i sum = _mm256_setzero_si256();

  void add(__m256i weights, __m256i quads) {
    if constexpr (kType == PackedType::kQ4_0) {
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, quads));
    } else {
      const __m256i centred = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(quads, centred));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
  __m256 value(int x_sum) const {
    if constexpr (kType == PackedType::kQ4_0) {
      const __m256i dot = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
      return _mm256_cvtepi32_ps(_mm256_sub_epi32(dot, _mm256_set1_epi32(8 * x_sum)));
    } else {
      return _mm256_cvtepi32_ps(sum);
    }
  }
};

template <PackedType kType, int M>
inline __attribute__((always_inline)) void add_quant_block(const LinearArgs& a, const unsigned char* w, long row,
                                                           long block, Vec (&acc)[M][1]) {
  constexpr bool kNibbles = kType == PackedType::kQ4_0;
  constexpr PackedPairs kForm{.nibbles = kNibbles};
  const long blocks = a.cols / 32;
  const signed char* x = a.xq + row * a.cols;
  const __m256i low_mask = _mm256_set1_epi8(15);
  Dot<kType> dot[M][2];
#pragma GCC unroll 8
  for (int step = 0; step < (kNibbles ? 4 : 8); ++step) {
    const unsigned char* at = w + kForm.quants_at(block) + step * 64;
    const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32));
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const signed char* values = x + m * a.cols + block * 32 + step * 4;
      int quad;
      __builtin_memcpy(&quad, values, 4);
      const __m256i quads = _mm256_set1_epi32(quad);
      if constexpr (kNibbles) {
        int upper;
        __builtin_memcpy(&upper, values + 16, 4);
        const __m256i uppers = _mm256_set1_epi32(upper);
        dot[m][0].add(_mm256_and_si256(left, low_mask), quads);
        dot[m][1].add(_mm256_and_si256(right, low_mask), quads);
        dot[m][0].add(_mm256_and_si256(_mm256_srli_epi16(left, 4), low_mask), uppers);
        dot[m][1].add(_mm256_and_si256(_mm256_srli_epi16(right, 4), low_mask), uppers);
      } else {
        dot[m][0].add(left, quads);
        dot[m][1].add(right, quads);
      }
    }
  }
  const unsigned char* scales = w + kForm.scales_at(block);
  const Vec w_scale = Vec::load_half(reinterpret_cast<const unsigned short*>(scales));
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const int sum = sum_of(a.x_sums[(row + m) * blocks + block]);
    const Vec scale = Vec::mul(w_scale, Vec::set1(a.x_scales[(row + m) * blocks + block]));
    acc[m][0] = Vec::fma({dot[m][0].value(sum), dot[m][1].value(sum)}, scale, acc[m][0]);
  }
}

/// kFew: so few rows that weights do not come as fast as they are computed with.
template <PackedType kType, int M, int N, bool kFew = M == 1>
inline __attribute__((always_inline)) float* quant_slice(const LinearArgs& a, long row, long panel,
                                                         const SliceStep& step, float* top) {
  static_assert(N == 1, "two registers a panel leave room for one panel");
  constexpr PackedPairs kForm{.nibbles = kType == PackedType::kQ4_0};
  Vec acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  for (long block = step.begin / 32; block < step.end / 32; ++block) {
    // Half of a pair and the line that the halves meet in.
    if constexpr (kFew) prefetch_block<kForm.quant_bytes() + kCacheLine>(w + kForm.quants_at(block), a.prefetch);
    add_quant_block<kType, M>(a, w, row, block, acc);
  }
  return push_sums(acc, step.adds, top);
}

/// How products of quants with those of x, up to 127, are added in 16 bits before they become 32. kUnsigned: quants
/// from 0 to 31, by themselves; kSigned: quants within +-32, |w| times x with w's sign; both 4 products of pairs at
/// once, 8 where quants are nibbles (up to 15, within +-12). kAny: each pair alone, as in Dot.
enum class Products { kUnsigned, kSigned, kAny };

constexpr Products products_of(PackedType type) {
  if (packed_sub_blocks(type).minima) return Products::kUnsigned;
  return type == PackedType::kNibbles32 || type == PackedType::kIQ4_XS ? Products::kAny : Products::kSigned;
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

/// Quants as signed bytes: 8 outputs of 4 k of the block at `quants`, those from `output` on. Nibbles of types with
/// minima stand for themselves.
template <PackedType kType>
inline __attribute__((always_inline)) __m256i signed_quants(const unsigned char* quants, int quad, int output,
                                                            __m256i table) {
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  const unsigned char* at = quants + (kForm.nibbles ? quad % 4 : quad) * 64 + output * 4;
  const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  if constexpr (!kForm.nibbles) return _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
  const __m256i nibbles = _mm256_and_si256(quad >= 4 ? _mm256_srli_epi16(stored, 4) : stored, _mm256_set1_epi8(15));
  if constexpr (kForm.table()) return _mm256_shuffle_epi8(table, nibbles);
  if constexpr (kForm.high_bits > 0) {
    const unsigned char* lines = quants + 16 * kPanel + output * 4;
    const __m256i whole = _mm256_or_si256(nibbles, high_bits<kForm.high_bits>(lines, quad));
    return kForm.high_bits == 2 ? _mm256_sub_epi8(whole, _mm256_set1_epi8(32)) : whole;
  }
  return nibbles;
}

/// Products of pairs in 16 bits.
template <Products kProducts>
inline __m256i pair_products(__m256i weights, __m256i quads) {
  if constexpr (kProducts == Products::kUnsigned) return _mm256_maddubs_epi16(weights, quads);
  return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(quads, weights));
}

/// The dot products of M rows with one sub-block of 16 outputs.
template <PackedType kType, Products kProducts, int kSub, int M>
inline __attribute__((always_inline)) void sub_block_dots(const LinearArgs& a, const unsigned char* quants,
                                                          const signed char* x, __m256i table, __m256i (&dot)[M][2]) {
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  constexpr int kQuads = kForm.size / 4;
  constexpr int kAtOnce = kProducts == Products::kAny ? 1 : kForm.nibbles && kForm.high_bits == 0 ? kQuads : 4;
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) dot[m][0] = dot[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int first = kSub * kQuads; first < (kSub + 1) * kQuads; first += kAtOnce) {
    __m256i pairs[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int quad = first; quad < first + kAtOnce; ++quad) {
      const __m256i left = signed_quants<kType>(quants, quad, 0, table);
      const __m256i right = signed_quants<kType>(quants, quad, 8, table);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        int four;
        __builtin_memcpy(&four, x + m * a.cols + quad * 4, 4);
        const __m256i quads = _mm256_set1_epi32(four);
        pairs[m][0] = _mm256_add_epi16(pairs[m][0], pair_products<kProducts>(left, quads));
        pairs[m][1] = _mm256_add_epi16(pairs[m][1], pair_products<kProducts>(right, quads));
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      dot[m][0] = _mm256_add_epi32(dot[m][0], _mm256_madd_epi16(pairs[m][0], _mm256_set1_epi16(1)));
      dot[m][1] = _mm256_add_epi32(dot[m][1], _mm256_madd_epi16(pairs[m][1], _mm256_set1_epi16(1)));
    }
  }
}

/// from - factor * minimum.
inline __attribute__((always_inline)) Vec subtract(__m256 factor, Vec minimum, Vec from) {
  return {_mm256_fnmadd_ps(factor, minimum.a, from.a), _mm256_fnmadd_ps(factor, minimum.b, from.b)};
}

/// One sub-block of a block of 32: x, its scales and sums are those of the tile's first row at this block, `at` is the
/// block in the panel. Sub-blocks that are added up first go to block_sum.
template <PackedType kType, Products kProducts, int kSub, int M>
inline __attribute__((always_inline)) void add_sub_block(const LinearArgs& a, const PackedBlock& at,
                                                         const signed char* x, const float* x_scales,
                                                         const BlockSums* x_sums, __m256i table, Vec (&block_sum)[M],
                                                         Vec (&acc)[M][1]) {
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  const long blocks = a.cols / 32;
  __m256i dot[M][2];
  sub_block_dots<kType, kProducts, kSub, M>(a, at.quants, x, table, dot);
  const Vec w_scale = sub_block_scales<Vec, kForm>(at, 0, kSub);
  Vec w_min = Vec::set1(0.0f);
  if constexpr (kForm.minima) w_min = sub_block_minima<Vec, kForm>(at, 0, kSub);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Vec dots = {_mm256_cvtepi32_ps(dot[m][0]), _mm256_cvtepi32_ps(dot[m][1])};
    if constexpr (kForm.summed()) {
      const __m256 sum = _mm256_cvtepi32_ps(_mm256_set1_epi32(half_sum<kSub>(x_sums[m * blocks])));
      const Vec scaled = kSub == 0 ? Vec::mul(dots, w_scale) : Vec::fma(dots, w_scale, block_sum[m]);
      block_sum[m] = subtract(sum, w_min, scaled);
      continue;
    }
    const Vec x_scale = Vec::set1(x_scales[m * blocks]);
    acc[m][0] = Vec::fma(dots, Vec::mul(w_scale, x_scale), acc[m][0]);
    if constexpr (kForm.minima) {
      const __m128 sum = _mm_cvtepi32_ps(_mm_set1_epi32(sum_of(x_sums[m * blocks])));
      acc[m][0] = subtract(_mm256_broadcastss_ps(sum), Vec::mul(w_min, x_scale), acc[m][0]);
    }
  }
}

template <PackedType kType, Products kProducts, int M, int N>
inline __attribute__((always_inline)) float* sub_block_slice(const LinearArgs& a, long row, long panel,
                                                             const SliceStep& step, float* top) {
  static_assert(N == 1, "two registers a panel leave room for one panel");
  constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
  const long blocks = a.cols / 32;
  const signed char* x = a.xq + row * a.cols;
  __m256i table = _mm256_setzero_si256();
  if constexpr (kForm.table()) {
    table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a.nibble_quants)));
  }
  Vec acc[M][N];
  clear_sums(acc);
  const unsigned char* w = panel_of(a, panel);
  for (long block = step.begin / 32; block < step.end / 32; ++block) {
    const PackedBlock at = block_in(kForm, w, block);
    if constexpr (M == 1 || is_super_blocks(kType)) prefetch_block<share_bytes(kForm)>(at.ahead, a.prefetch);
    const float* scales = a.x_scales + row * blocks + block;
    const BlockSums* sums = a.x_sums + row * blocks + block;
    Vec block_sum[M];
    add_sub_block<kType, kProducts, 0, M>(a, at, x + block * 32, scales, sums, table, block_sum, acc);
    if constexpr (kForm.subs() == 2) {
      add_sub_block<kType, kProducts, 1, M>(a, at, x + block * 32, scales, sums, table, block_sum, acc);
    }
    if constexpr (kForm.summed()) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[m][0] = Vec::fma(block_sum[m], Vec::set1(scales[m * blocks]), acc[m][0]);
    }
  }
  return push_sums(acc, step.adds, top);
}

template <PackedType kType>
constexpr TileTable<6, 1> kFloatTable = {{
    {all_slices<float_slice<Vec, kType, 1, 1>, 1>},
    {all_slices<float_slice<Vec, kType, 2, 1>, 2>},
    {all_slices<float_slice<Vec, kType, 3, 1>, 3>},
    {all_slices<float_slice<Vec, kType, 4, 1>, 4>},
    {all_slices<float_slice<Vec, kType, 5, 1>, 5>},
    {all_slices<float_slice<Vec, kType, 6, 1>, 6>},
}};

template <PackedType kType>
constexpr TileTable<3, 1> kQuantTable = {{
    {all_slices<quant_slice<kType, 1, 1>, 1>},
    {all_slices<quant_slice<kType, 2, 1>, 2>},
    {all_slices<quant_slice<kType, 3, 1>, 3>},
}};

template <PackedType kType, Products kProducts = products_of(kType)>
constexpr TileTable<3, 1> kSubBlockTable = {{
    {all_slices<sub_block_slice<kType, kProducts, 1, 1>, 1>},
    {all_slices<sub_block_slice<kType, kProducts, 2, 1>, 2>},
    {all_slices<sub_block_slice<kType, kProducts, 3, 1>, 3>},
}};

template <PackedType kType>
constexpr TileTable<3, 1> kFewQuantRowsTable = {{
    {all_slices<quant_slice<kType, 1, 1, true>, 1>},
    {all_slices<quant_slice<kType, 2, 1, true>, 2>},
    {all_slices<quant_slice<kType, 3, 1, true>, 3>},
}};

template <PackedType kType>
void linear_quants(const LinearArgs& a) {
  if (a.rows <= 2 * kFewQuantRowsTable<kType>.kRows) return linear_tiles<Vec>(a, kFewQuantRowsTable<kType>, a.cols);
  linear_tiles<Vec>(a, kQuantTable<kType>, a.cols);
}

/// Of kInt8: 4 k of 16 outputs, signed, with their magnitudes, and their products with 4 k of a row.
struct Ints {
  struct Quad {
    __m256i signs[2];
    __m256i sizes[2];
  };
  __m256i sums[2];
  static Ints start(int) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Quad load(const unsigned char* at) {
    Quad quad;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i stored = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + i * 32));
      quad.signs[i] = _mm256_xor_si256(stored, _mm256_set1_epi8(-128));
      quad.sizes[i] = _mm256_abs_epi8(quad.signs[i]);
    }
    return quad;
  }
  void add(const Quad& weights, int four) {
    const __m256i quads = _mm256_set1_epi32(four);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i pairs = _mm256_maddubs_epi16(weights.sizes[i], _mm256_sign_epi8(quads, weights.signs[i]));
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
  void add(const Ints& other) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) sums[i] = _mm256_add_epi32(sums[i], other.sums[i]);
  }
  Vec floats() const { return {_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])}; }
};

template <bool kFew>
constexpr TileTable<4, 1> kInt8Table = {{
    {all_slices<int8_slice<Vec, Ints, 1, 1, kFew>, 1>},
    {all_slices<int8_slice<Vec, Ints, 2, 1, kFew>, 2>},
    {all_slices<int8_slice<Vec, Ints, 3, 1, kFew>, 3>},
    {all_slices<int8_slice<Vec, Ints, 4, 1, kFew>, 4>},
}};

void linear_int8(const LinearArgs& a) {
  const bool few = a.rows <= 2 * kInt8Table<true>.kRows;
  linear_tiles<Vec>(a, few ? kInt8Table<true> : kInt8Table<false>, a.cols);
}

/// A tile's rows read super-blocks as they lie in memory.
template <PackedType kType>
constexpr TileTable<3, 1> kFewRowsTable = {{
    {all_slices<sub_block_slice<kType, products_of(kType), 1, 1>, 1>},
    {all_slices<sub_block_slice<kType, products_of(kType), 2, 1>, 2>},
    {all_slices<sub_block_slice<kType, products_of(kType), 3, 1>, 3>},
}};

template <PackedType kType>
void linear_super_blocks(const LinearArgs& a) {
  if (a.rows <= 2 * kFewRowsTable<kType>.kRows) return linear_tiles<Vec>(a, kFewRowsTable<kType>, a.cols);
  linear_tiles<Vec, kType>(a, kSubBlockTable<unpacked_type(kType)>, a.cols);
}

/// Whether Products::kSigned holds what nibbles stand for.
bool nibbles_are_small(const LinearArgs& a) {
  int largest = 0;
  for (int i = 0; i < 16; ++i) {
    const int magnitude = a.nibble_quants[i] < 0 ? -a.nibble_quants[i] : a.nibble_quants[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest <= 12;
}

template <PackedType kType>
void linear_halves(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneRowOfHalves<Vec, kType>, a.cols * 4);
  if (a.scratch != nullptr) return linear_tiles<Vec, kType>(a, kFloatTable<PackedType::kF32>, a.cols * 4);
  linear_tiles<Vec>(a, kFloatTable<kType>, a.cols * 4);
}

void linear(const LinearArgs& a) {
  switch (a.type) {
    case PackedType::kF32:
      return linear_tiles<Vec>(a, kFloatTable<PackedType::kF32>, a.cols * 4);
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
      return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kBytes16>, a.cols);
    case PackedType::kBytes32Min:
      return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kBytes32Min>, a.cols);
    case PackedType::kNibbles16:
      return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kNibbles16>, a.cols);
    case PackedType::kNibbles16Min:
      return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kNibbles16Min>, a.cols);
    case PackedType::kNibbles32:
      if (nibbles_are_small(a)) {
        return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kNibbles32, Products::kSigned>, a.cols);
      }
      return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kNibbles32>, a.cols);
    case PackedType::kNibbles32Min:
      return linear_tiles<Vec>(a, kSubBlockTable<PackedType::kNibbles32Min>, a.cols);
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

constinit const Kernels kAvx2Kernels = {
    .name = "avx2",
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
