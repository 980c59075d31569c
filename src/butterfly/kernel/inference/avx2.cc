// AVX2 with FMA and F16C: 16 floats are two registers, every operation is done on both halves.
#include <immintrin.h>

#include "butterfly/kernel/inference/attention_inl.h"
#include "butterfly/kernel/inference/avx2_tiles_inl.h"
#include "butterfly/kernel/inference/avx2_vec_inl.h"
#include "butterfly/kernel/inference/int8_inl.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"

namespace butterfly {
namespace {

template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 1> float_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<gathered_float_slice<Vec, kType, M, 1>, M>}...}};
}
template <PackedType kType>
constexpr auto kFloatTable = float_tiles<kType>(UpTo<6>());
constexpr TileTable<1, 1> kOneFloatRow = {{{all_slices<float_slice<Vec, PackedType::kF32, 1, 1>, 1>}}};

/// gathered_float_slice() of few rows and halves: eight outputs of the panel and then the others. So the sums of eight
/// rows have registers, and each weight is widened once.
template <PackedType kType, int M>
float* half_panel_slice(const LinearArgs& a, long row, long panel, const SliceStep& step, float* top) {
  constexpr long kColumns = GatheredFloats::kColumns;
  const auto* w = reinterpret_cast<const unsigned short*>(panel_of(a, panel));
  const float* x = a.x + (row - a.first_row) * GatheredFloats::blocks(a.cols) * kColumns;
  float* place = top;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256 acc[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m] = _mm256_setzero_ps();
    for (long begin = step.begin; begin < step.end; begin += kColumns) {
      const float* of_block = x + begin * M;
      const long end = min_of(begin + kColumns, step.end);
      for (long k = begin; k < end; ++k, ++of_block) {
        const __m256 weights = Vec::load_eight<kType>(w + k * kPanel + half * 8);
        if (half == 0) prefetch_floats<kType>(reinterpret_cast<const unsigned char*>(w + k * kPanel), a.prefetch);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          acc[m] = _mm256_fmadd_ps(weights, _mm256_broadcast_ss(of_block + m * kColumns), acc[m]);
        }
      }
    }
    place = top;
    for (int adds = M > 1 ? step.adds : 0; adds > 0; --adds) {  // as push_sums() has it
      place -= M * kPanel;
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        acc[m] = _mm256_add_ps(_mm256_loadu_ps(place + m * kPanel + half * 8), acc[m]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) _mm256_storeu_ps(place + m * kPanel + half * 8, acc[m]);
  }
  return place + M * kPanel;
}

template <PackedType kType, int... M>
constexpr TileTable<sizeof...(M), 1> half_panel_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<half_panel_slice<kType, M>, M>}...}};
}
constexpr auto kFewFloatRowsTable = float_tiles<PackedType::kF32>(UpTo<4>());
template <PackedType kType>
constexpr auto kFewRowsOfHalvesTable = half_panel_tiles<kType>(UpTo<8>());

constexpr RowOrder kGathered = RowOrder::kGathered;
constexpr PackedType kAsItLies = PackedType::kF32;  // of linear_tiles(): nothing is unpacked

/// Few rows pass by a panel at once, so that each weight is unpacked once, though not all of their sums have registers.
template <PackedType kType, bool kFew, bool kLargeTable, int... M>
constexpr TileTable<sizeof...(M), 1> tiles_of(RowCounts<M...> /*counts*/) {
  return {{{all_slices<tile_slice<kType, M, kFew, kLargeTable>, M>}...}};
}
template <PackedType kType, bool kLargeTable = false>
constexpr auto kFewRowsTiles = tiles_of<kType, true, kLargeTable>(UpTo<8>());
template <PackedType kType, bool kLargeTable = false>
constexpr auto kTiles = [] {
  if constexpr (products_of(kType, kLargeTable).sizes) {
    return tiles_of<kType, false, kLargeTable>(UpTo<4>());
  } else {
    return tiles_of<kType, false, kLargeTable>(UpTo<6>());
  }
}();

/// Whether rows are few: tables of few rows take two tiles for them at most.
bool are_few(const LinearArgs& a) {
  constexpr long kRowsMax = 16;
  return a.rows <= kRowsMax;
}

/// Types that are multiplied as they lie.
template <PackedType kType, bool kLargeTable = false>
void linear_quants(const LinearArgs& a) {
  constexpr TileSums kSums = tile_sums<kType>;
  if (are_few(a)) return linear_tiles<Vec, kAsItLies, kGathered, kSums>(a, kFewRowsTiles<kType, kLargeTable>, a.cols);
  linear_tiles<Vec, kAsItLies, kGathered, kSums>(a, kTiles<kType, kLargeTable>, a.cols);
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
      add_ints(sums[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
  void add(const Ints& other) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) sums[i] = _mm256_add_epi32(sums[i], other.sums[i]);
  }
  Vec floats() const { return {_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])}; }
};

constexpr TileTable<1, 1> kOneInt8Row = {{{all_slices<int8_slice<Vec, Ints, 1, 1>, 1>}}};
template <bool kFew, int... M>
constexpr TileTable<sizeof...(M), 1> int8_tiles(RowCounts<M...> /*counts*/) {
  return {{{all_slices<int8_slice<Vec, Ints, M, 1, kFew, kGathered>, M>}...}};
}
constexpr auto kInt8Table = int8_tiles<false>(UpTo<4>());
constexpr auto kFewInt8RowsTable = int8_tiles<true>(UpTo<8>());

void linear_int8(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneInt8Row, a.cols);
  if (are_few(a)) return linear_tiles<Vec, kAsItLies, kGathered>(a, kFewInt8RowsTable, a.cols);
  linear_tiles<Vec, kAsItLies, kGathered>(a, kInt8Table, a.cols);
}

/// Many rows multiply super-blocks unpacked.
template <PackedType kType>
void linear_super_blocks(const LinearArgs& a) {
  constexpr PackedType kUnpacked = unpacked_type(kType);
  constexpr bool kLargeTable = kType == PackedType::kIQ4_XS;
  if (are_few(a)) return linear_quants<kType, kLargeTable>(a);
  linear_tiles<Vec, kType, kGathered, tile_sums<kUnpacked>>(a, kTiles<kUnpacked, kLargeTable>, a.cols);
}

/// Whether what nibbles stand for is small enough for the offset of products_of().
bool nibbles_are_small(const LinearArgs& a) {
  int largest = 0;
  for (int i = 0; i < 16; ++i) {
    const int magnitude = a.nibble_quants[i] < 0 ? -a.nibble_quants[i] : a.nibble_quants[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest <= 12;
}

constexpr RowOrder kGatheredFloats = RowOrder::kGatheredFloats;

void linear_floats(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneFloatRow, a.cols * 4);
  // Eight rows are two tiles of four: a panel is read twice either way.
  constexpr long kFewRows = 2 * kFewFloatRowsTable.kRows;
  if (a.rows <= kFewRows) return linear_tiles<Vec, kAsItLies, kGatheredFloats>(a, kFewFloatRowsTable, a.cols * 4);
  linear_tiles<Vec, kAsItLies, kGatheredFloats>(a, kFloatTable<PackedType::kF32>, a.cols * 4);
}

template <PackedType kType>
void linear_halves(const LinearArgs& a) {
  if (a.rows == 1) return linear_tiles<Vec>(a, kOneRowOfHalves<Vec, kType>, a.cols * 4);
  if (are_few(a)) return linear_tiles<Vec, kAsItLies, kGatheredFloats>(a, kFewRowsOfHalvesTable<kType>, a.cols * 4);
  if (a.scratch == nullptr) return linear_tiles<Vec, kAsItLies, kGatheredFloats>(a, kFloatTable<kType>, a.cols * 4);
  linear_tiles<Vec, kType, kGatheredFloats>(a, kFloatTable<PackedType::kF32>, a.cols * 4);
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
      return linear_quants<PackedType::kBytes16>(a);
    case PackedType::kBytes32Min:
      return linear_quants<PackedType::kBytes32Min>(a);
    case PackedType::kNibbles16:
      return linear_quants<PackedType::kNibbles16>(a);
    case PackedType::kNibbles16Min:
      return linear_quants<PackedType::kNibbles16Min>(a);
    case PackedType::kNibbles32:
      if (nibbles_are_small(a)) return linear_quants<PackedType::kNibbles32>(a);
      return linear_quants<PackedType::kNibbles32, true>(a);
    case PackedType::kNibbles32Min:
      return linear_quants<PackedType::kNibbles32Min>(a);
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
