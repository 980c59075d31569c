// Matmuls of quantised weights and many rows with AMX: a tile multiplies 16 rows of activations with 16 outputs over
// one sub-block, as exact integers; what is done with those is done in the order of all others (kernels.h). Everything
// else is AVX-512's.
#include <immintrin.h>

#include "butterfly/kernel/inference/int8_amx.h"
#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/kernel/inference/linear_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"

namespace butterfly {
namespace {

constexpr long kTileRows = 16;
constexpr long kWeightBytes = 32 * kPanel;  // of a block, as tiles read it: [8 quads][16 outputs][4 k]
constexpr long kChunkBlocks = 32;           // of a panel, unpacked at a time: they stay in the first-level cache
constexpr long kRowTiles = 16;              // that share a panel's chunk
constexpr long kBlocksMax = 16384;  // of 32 activations that share a panel: 512 KiB, which fit the second-level cache
constexpr int kAhead = 2;           // blocks that are multiplied before the first of them is added up

struct Vec {
  __m512 v;
  static Vec set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec load_half(const unsigned short* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec load_quants(const unsigned char* q) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q))))};
  }
};

/// https://www.intel.com/content/www/us/en/docs/intrinsics-guide: the operand of LDTILECFG. Tiles 0 and 1 are products,
/// 4 and 5 activations, 6 and 7 weights.
struct TileConfig {
  explicit TileConfig(int elements) {
    for (int i = 0; i < 2; ++i) {
      set(i, kTileRows, 64);
      set(4 + i, kTileRows, elements);
      set(6 + i, elements / 4, 64);
    }
  }
  unsigned char palette = 1;
  unsigned char start_row = 0;
  unsigned char reserved[14] = {};
  unsigned short row_bytes[16] = {};
  unsigned char rows[16] = {};

 private:
  void set(int tile, long tile_rows, int bytes) {
    rows[tile] = static_cast<unsigned char>(tile_rows);
    row_bytes[tile] = static_cast<unsigned short>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

/// What a type is once it is unpacked.
struct Form {
  int size;  // elements of a sub-block
  bool minima;
  constexpr int subs() const { return 32 / size; }
};

constexpr bool is_pairs(PackedType type) {
  return type == PackedType::kQ8_0 || type == PackedType::kQ4_0;
}

constexpr Form form_of(PackedType type) {
  if (is_pairs(type)) return {.size = 32, .minima = false};
  return {.size = packed_sub_blocks(type).size, .minima = packed_sub_blocks(type).minima};
}

/// Some blocks of one panel.
struct Weights {
  alignas(64) signed char quants[kChunkBlocks * kWeightBytes];
  alignas(64) float scales[kChunkBlocks * 2 * kPanel];  // [block][sub][16]
  alignas(64) float minima[kChunkBlocks * 2 * kPanel];
};

/// Activations of up to kRowTiles tiles, of all columns.
struct Rows {
  long first;  // the first row
  long last;   // behind the last
  long tiles;
  long blocks;                                      // of a row
  alignas(64) signed char quants[kBlocksMax * 32];  // [tile][sub-block][16 rows][its elements]
  alignas(64) float scales[kBlocksMax];             // [tile][block][16 rows]
  alignas(64) float sums[kBlocksMax];               // likewise, of types with minima

  /// The last tile ends with the last row of all, and has rows of the one before.
  long row_of(long tile, long rows) const { return min_of(first + tile * kTileRows, rows - kTileRows); }
};

/// Where a tile of outputs stands between two chunks of a panel.
struct Unfinished {
  alignas(64) float waiting[(kWaitingMax + 1) * kTileRows * kPanel];  // sums of slices, the one begun at the end
  float* begun() { return waiting + kWaitingMax * kTileRows * kPanel; }
};

template <PackedType kType>
__m512i quant_table(const LinearArgs& a) {
  if constexpr (kType == PackedType::kQ4_0) {
    return _mm512_broadcast_i32x4(_mm_setr_epi8(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
  }
  if (a.nibble_quants == nullptr) return _mm512_setzero_si512();
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a.nibble_quants)));
}

template <PackedType kType, bool kNibbles, bool kTable>
inline __attribute__((always_inline)) void unpack_quants(const unsigned char* from, __m512i table, signed char* to) {
  const __m512i low_mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int quad = 0; quad < (kNibbles ? 4 : 8); ++quad) {
    const __m512i bytes = _mm512_loadu_si512(from + quad * 64);
    if constexpr (kNibbles) {
      __m512i low = _mm512_and_si512(bytes, low_mask);
      __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low_mask);
      if constexpr (kTable) {
        low = _mm512_shuffle_epi8(table, low);
        high = _mm512_shuffle_epi8(table, high);
      }
      _mm512_store_si512(to + quad * 64, low);
      _mm512_store_si512(to + (quad + 4) * 64, high);
    } else {
      _mm512_store_si512(to + quad * 64, _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)));
    }
  }
}

/// To the nibbles of a block that are unpacked; six bits stand for -32 to 31.
template <int kBits>
inline __attribute__((always_inline)) void add_high_bits(const unsigned char* quants, signed char* to) {
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; ++quad) {
    const __m512i line = _mm512_loadu_si512(quants + 16 * kPanel + (kBits == 2 ? quad / 4 * 64 : 0));
    const int left = kBits == 2 ? 4 - 2 * (quad % 4) : 4 - quad;
    const __m512i moved = left >= 0 ? _mm512_slli_epi16(line, static_cast<unsigned>(left > 0 ? left : 0))
                                    : _mm512_srli_epi16(line, static_cast<unsigned>(left > 0 ? 0 : -left));
    const __m512i high = _mm512_and_si512(moved, _mm512_set1_epi8(kBits == 2 ? 0x30 : 0x10));
    const __m512i whole = _mm512_or_si512(_mm512_load_si512(to + quad * 64), high);
    _mm512_store_si512(to + quad * 64, kBits == 2 ? _mm512_sub_epi8(whole, _mm512_set1_epi8(32)) : whole);
  }
}

/// Quants become signed bytes, scales floats.
template <PackedType kType>
void unpack(const LinearArgs& a, long panel, long begin, long end, Weights& to) {
  const unsigned char* w = a.weights + panel * a.panel_stride;
  const __m512i table = quant_table<kType>(a);
  for (long block = begin; block < end; ++block) {
    const long at = block - begin;
    if constexpr (is_pairs(kType)) {
      constexpr PackedPairs kForm{.nibbles = kType == PackedType::kQ4_0};
      unpack_quants<kType, kForm.nibbles, true>(w + kForm.quants_at(block), table, to.quants + at * kWeightBytes);
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + kForm.scales_at(block)));
      _mm512_store_ps(to.scales + at * kPanel, _mm512_cvtph_ps(halves));
    } else {
      constexpr PackedSubBlocks kForm = packed_sub_blocks(kType);
      const PackedBlock from = block_in(kForm, w, block);
      unpack_quants<kType, kForm.nibbles, kForm.table()>(from.quants, table, to.quants + at * kWeightBytes);
      if constexpr (kForm.high_bits > 0) add_high_bits<kForm.high_bits>(from.quants, to.quants + at * kWeightBytes);
      for (int sub = 0; sub < kForm.subs(); ++sub) {
        const long place = (at * kForm.subs() + sub) * kPanel;
        Vec::store(to.scales + place, sub_block_scales<Vec, kForm>(from, 0, sub));
        if constexpr (kForm.minima) Vec::store(to.minima + place, sub_block_minima<Vec, kForm>(from, 0, sub));
      }
    }
  }
  // Tiles are loaded by statements of which the compiler does not know what they read.
  asm volatile("" ::: "memory");
}

/// Rows as tiles read them, once for all panels.
template <Form kForm>
void pack_rows(const LinearArgs& a, Rows& rows) {
  for (long tile = 0; tile < rows.tiles; ++tile) {
    const long row = rows.row_of(tile, a.rows);
    for (long m = 0; m < kTileRows; ++m) {
      const signed char* quants = a.xq + (row + m) * a.cols;
      const long from = (row + m) * rows.blocks;
      const long to = tile * rows.blocks * kTileRows + m;
      signed char* packed = rows.quants + tile * rows.blocks * 32 * kTileRows + m * kForm.size;
      for (long block = 0; block < rows.blocks; ++block) {
        rows.scales[to + block * kTileRows] = a.x_scales[from + block];
        if constexpr (kForm.minima)
          rows.sums[to + block * kTileRows] = static_cast<float>(sum_of(a.x_sums[from + block]));
        for (int sub = 0; sub < kForm.subs(); ++sub) {
          __builtin_memcpy(packed, quants, kForm.size);
          packed += kForm.size * kTileRows;
          quants += kForm.size;
        }
      }
    }
  }
  asm volatile("" ::: "memory");  // as in unpack()
}

/// One sub-block of 16 rows and 16 outputs, as integers. Neighbours use other tiles, so that none waits for the other.
template <int kSize>
inline __attribute__((always_inline)) void multiply_even(const signed char* x, const signed char* w, int* to) {
  _tile_zero(0);
  _tile_loadd(4, x, kSize);
  _tile_loadd(6, w, 64);
  _tile_dpbssd(0, 4, 6);
  _tile_stored(0, to, 64);
}
template <int kSize>
inline __attribute__((always_inline)) void multiply_odd(const signed char* x, const signed char* w, int* to) {
  _tile_zero(1);
  _tile_loadd(5, x, kSize);
  _tile_loadd(7, w, 64);
  _tile_dpbssd(1, 5, 7);
  _tile_stored(1, to, 64);
}

/// A chunk of one tile of outputs.
template <Form kForm>
class TileChunk {
 public:
  TileChunk(const Weights& weights, const Rows& rows, long tile, long begin)
      : weights_(weights),
        x_(rows.quants + (tile * rows.blocks + begin) * 32 * kTileRows),
        scales_(rows.scales + (tile * rows.blocks + begin) * kTileRows),
        sums_(rows.sums + (tile * rows.blocks + begin) * kTileRows) {}

  /// The integers of sub-block `number`.
  inline __attribute__((always_inline)) void multiply(long number) {
    int* to = products_ + number % kRing * kTileRows * kPanel;
    const signed char* x = x_ + number * kForm.size * kTileRows;
    const signed char* w = weights_.quants + number * kForm.size * kPanel;
    if (number % 2 == 0) {
      multiply_even<kForm.size>(x, w, to);
    } else {
      multiply_odd<kForm.size>(x, w, to);
    }
  }

  /// acc += what sub-block `number` of the chunk gives.
  inline __attribute__((always_inline)) void add(long number, Vec (&acc)[kTileRows][1]) const {
    const int* products = products_ + number % kRing * kTileRows * kPanel;
    const float* x_scales = scales_ + number / kForm.subs() * kTileRows;
    const __m512 w_scale = _mm512_load_ps(weights_.scales + number * kPanel);
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) {
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(products + m * kPanel));
      const __m512 x_scale = _mm512_set1_ps(x_scales[m]);
      acc[m][0].v = _mm512_fmadd_ps(dot, _mm512_mul_ps(w_scale, x_scale), acc[m][0].v);
    }
    if constexpr (kForm.minima) {
      const float* x_sums = sums_ + number / kForm.subs() * kTileRows;
      const __m512 w_min = _mm512_load_ps(weights_.minima + number * kPanel);
#pragma GCC unroll 16
      for (int m = 0; m < kTileRows; ++m) {
        const __m512 minimum = _mm512_mul_ps(w_min, _mm512_set1_ps(x_scales[m]));
        acc[m][0].v = _mm512_fnmadd_ps(_mm512_set1_ps(x_sums[m]), minimum, acc[m][0].v);
      }
    }
  }

 private:
  static constexpr int kRing = 4;
  static_assert(kRing > kAhead);
  const Weights& weights_;
  const signed char* x_;
  const float* scales_;
  const float* sums_;
  alignas(64) int products_[kRing * kTileRows * kPanel];
};

/// How far a panel is: the blocks that are done, the slice that comes next or is begun, sums that wait.
struct Progress {
  long block;
  int step;
  long waiting;
};

/// Blocks [from.block, end) of one tile of outputs, slices folded as they end.
template <Form kForm>
Progress add_chunk(const SliceSteps& steps, const Progress& from, long end, TileChunk<kForm>& chunk, Unfinished& tile) {
  constexpr long kSums = kTileRows * kPanel;
  constexpr int kSubs = kForm.subs();
  const long numbers = (end - from.block) * kSubs;
  Vec acc[kTileRows][1];
  if (from.block == steps.steps[from.step].begin / 32) {
    clear_sums(acc);
  } else {
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) acc[m][0] = Vec::load(tile.begun() + m * kPanel);
  }
  Progress now = from;
  float* top = tile.waiting + from.waiting * kSums;
  for (long number = 0; number < min_of(kAhead, numbers); ++number) chunk.multiply(number);
  bool begun = true;
  for (long number = 0; number < numbers; number += kSubs) {
#pragma GCC unroll 2
    for (int sub = 0; sub < kSubs; ++sub) {
      if (number + sub + kAhead < numbers) chunk.multiply(number + sub + kAhead);
      chunk.add(number + sub, acc);
    }
    begun = true;
    if (++now.block == steps.steps[now.step].end / 32) {
      top = push_sums(acc, steps.steps[now.step].adds, top);
      ++now.step;
      clear_sums(acc);
      begun = false;
    }
  }
  if (begun) {
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) Vec::store(tile.begun() + m * kPanel, acc[m][0]);
  }
  now.waiting = (top - tile.waiting) / kSums;
  return now;
}

/// The packed weights of the chunk that comes next in memory: it is unpacked at once, and would wait for memory all the
/// while.
LinesAhead chunk_ahead(const LinearArgs& a, long panel, long block, long tiles) {
  const long block_bytes = a.panel_stride / (a.cols / 32);
  const unsigned char* at = a.weights + panel * a.panel_stride + block * block_bytes;
  const long left = a.weights + a.panel_end * a.panel_stride - at;
  return {at, min_of(kChunkBlocks * block_bytes, left), tiles};
}

/// One sum of one panel of outputs of these rows.
template <PackedType kType>
void multiply_panel(const LinearArgs& a, const LinearSum& sum, const SliceSteps& steps, long panel, const Rows& rows,
                    Weights& weights, Unfinished* tiles) {
  constexpr Form kForm = form_of(kType);
  const long last = steps.steps[steps.count - 1].end / 32;
  Progress progress{.block = steps.steps[0].begin / 32, .step = 0, .waiting = 0};
  while (progress.block < last) {
    const long end = min_of(progress.block + kChunkBlocks, last);
    unpack<kType>(a, panel, progress.block, end, weights);
    Progress after = progress;
    LinesAhead ahead = chunk_ahead(a, panel, end, rows.tiles);
    for (long tile = 0; tile < rows.tiles; ++tile) {
      ahead.ask();
      if (end == last) {
        const long row = rows.row_of(tile, a.rows);
        prefetch_outputs(sum, row, static_cast<int>(min_of(kTileRows, rows.last - row)), panel, 1);
      }
      TileChunk<kForm> chunk(weights, rows, tile, progress.block);
      after = add_chunk<kForm>(steps, progress, end, chunk, tiles[tile]);
    }
    progress = after;
  }
  for (long tile = 0; tile < rows.tiles; ++tile) {
    const long begin = rows.first + tile * kTileRows;
    const long skipped = begin - rows.row_of(tile, a.rows);
    const long end = min_of(begin + kTileRows, rows.last);
    finish_tile<Vec>(sum, a.out_rows, tiles[tile].waiting + skipped * kPanel, begin, static_cast<int>(end - begin),
                     panel, 1);
  }
}

template <PackedType kType>
void multiply_rows(const LinearArgs& a) {
  const SumSteps steps(a);
  Rows rows;
  Weights weights;
  Unfinished tiles[kRowTiles];
  rows.blocks = a.cols / 32;
  const long tiles_max = min_of(kRowTiles, kBlocksMax / kTileRows / rows.blocks);
  const TileConfig config(form_of(kType).size);
  // The compiler believes that the next statement reads no more than the first bytes.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
  for (rows.first = 0; rows.first < a.rows; rows.first = rows.last) {
    rows.last = min_of(rows.first + tiles_max * kTileRows, a.rows);
    rows.tiles = (rows.last - rows.first + kTileRows - 1) / kTileRows;
    pack_rows<form_of(kType)>(a, rows);
    for (long panel = a.panel_begin; panel < a.panel_end; ++panel) {
      for (int i = 0; i < a.sum_count; ++i) {
        multiply_panel<kType>(a, a.sums[i], steps.of[i], panel, rows, weights, tiles);
      }
    }
  }
  _tile_release();
}

}  // namespace

void linear_amx(const LinearArgs& a) {
  if (a.type == PackedType::kInt8 && linear_amx_int8(a)) return;
  // A tile takes as long for one row as for 16, two thirds of what AVX-512 takes for 16.
  const long computed = (a.rows + kTileRows - 1) / kTileRows * kTileRows;
  const bool pays = a.rows >= kTileRows && 2 * computed <= 3 * a.rows;
  if (!pays || a.panel_begin >= a.panel_end || a.cols / 32 > kBlocksMax / kTileRows) {
    return kAvx512Kernels.linear(a);
  }
  switch (a.type) {
    case PackedType::kQ8_0:
      return multiply_rows<PackedType::kQ8_0>(a);
    case PackedType::kQ4_0:
      return multiply_rows<PackedType::kQ4_0>(a);
    case PackedType::kBytes16:
      return multiply_rows<PackedType::kBytes16>(a);
    case PackedType::kBytes32Min:
      return multiply_rows<PackedType::kBytes32Min>(a);
    case PackedType::kNibbles16:
      return multiply_rows<PackedType::kNibbles16>(a);
    case PackedType::kNibbles32:
      return multiply_rows<PackedType::kNibbles32>(a);
    case PackedType::kNibbles32Min:
      return multiply_rows<PackedType::kNibbles32Min>(a);
    case PackedType::kQ3_K:
      return multiply_rows<PackedType::kQ3_K>(a);
    case PackedType::kQ4_K:
      return multiply_rows<PackedType::kQ4_K>(a);
    case PackedType::kQ5_K:
      return multiply_rows<PackedType::kQ5_K>(a);
    case PackedType::kQ6_K:
      return multiply_rows<PackedType::kQ6_K>(a);
    case PackedType::kIQ4_XS:
      return multiply_rows<PackedType::kIQ4_XS>(a);
    default:
      // Floats; and minima of sub-blocks of 16, whose sums are not there yet.
      return kAvx512Kernels.linear(a);
  }
}

}  // namespace butterfly
