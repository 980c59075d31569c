#include "butterfly/kernel/inference/self_check.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/packed/sub_blocks_inl.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

class Random {
 public:
  float operator()() { return normal_(engine_); }
  unsigned char byte() { return static_cast<unsigned char>(engine_()); }
  std::vector<float> floats(long count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = (*this)();
    return values;
  }

 private:
  std::mt19937 engine_{1};
  std::normal_distribution<float> normal_{0.0f, 0.5f};
};

void put_half(unsigned char* at, float value) {
  const std::uint16_t half = float_to_half(value);
  std::memcpy(at, &half, sizeof(half));
}

/// 64-byte aligned bytes, as packed matrices and the scratch of attention are.
class Aligned {
 public:
  explicit Aligned(long bytes) : lines_(static_cast<std::size_t>((bytes + 63) / 64)) {}
  unsigned char* data() { return lines_.front().bytes; }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  std::vector<Line> lines_;
};

constexpr long kCols = 160;  // an odd number of blocks
constexpr long kOutputs = 20;
constexpr long kPanels = (kOutputs + kPanel - 1) / kPanel;
constexpr long kBlocks = kCols / 32;

long panel_bytes(PackedType type) {
  if (type == PackedType::kF32) return kCols * kPanel * 4;
  if (type == PackedType::kF16 || type == PackedType::kBF16) return kCols * kPanel * 2;
  if (type == PackedType::kInt8) return PackedInt8::panel_bytes(kBlocks);
  if (!is_sub_blocks(type)) return PackedPairs{.nibbles = type == PackedType::kQ4_0}.panel_bytes(kBlocks);
  return packed_sub_blocks(type).panel_bytes(kBlocks);
}

/// A byte of quants, as packed. Those of sub-blocks have the ranges that sets rely on: +-32 and, with minima, 0 to 31.
unsigned char quants_of(PackedType type, unsigned char byte) {
  if (type == PackedType::kBytes16) return static_cast<unsigned char>(96 + byte % 64);
  if (type == PackedType::kBytes32Min) return static_cast<unsigned char>(128 + byte % 32);
  return byte;
}

/// What nibbles stand for: themselves where there are minima, within +-12 where 16 share a scale.
std::array<signed char, 16> nibble_table(PackedType type) {
  std::array<signed char, 16> table;
  for (int i = 0; i < 16; ++i) {
    const bool minima = is_sub_blocks(type) && packed_sub_blocks(type).minima;
    const int spread =
        type == PackedType::kNibbles16 || type == PackedType::kQ3_K ? i * 24 / 15 - 12 : i * 254 / 15 - 127;
    table[static_cast<std::size_t>(i)] = static_cast<signed char>(minima ? i : spread);
  }
  return table;
}

/// What is a float needs a value.
void fill_panel(PackedType type, Random& random, unsigned char* panel) {
  for (long i = 0; i < panel_bytes(type); ++i) panel[i] = quants_of(type, random.byte());
  const auto put_floats = [&](unsigned char* at, long count) {
    for (long i = 0; i < count; ++i) {
      const float value = random();
      std::memcpy(at + 4 * i, &value, sizeof(value));
    }
  };
  if (type == PackedType::kF32) {
    put_floats(panel, kCols * kPanel);
  } else if (type == PackedType::kInt8) {
    put_floats(panel, kPanel);
  } else if (type == PackedType::kF16) {
    for (long i = 0; i < kCols * kPanel; ++i) put_half(panel + 2 * i, random());
  } else if (type == PackedType::kBF16) {
    for (long i = 0; i < kCols * kPanel; ++i) {
      const std::uint16_t value = float_to_bfloat16(random());
      std::memcpy(panel + 2 * i, &value, sizeof(value));
    }
  } else if (!is_sub_blocks(type)) {
    const PackedPairs form{.nibbles = type == PackedType::kQ4_0};
    for (long block = 0; block < kBlocks; ++block) {
      for (long i = 0; i < kPanel; ++i) put_half(panel + form.scales_at(block) + 2 * i, random());
    }
  } else {
    const PackedSubBlocks form = packed_sub_blocks(type);
    for (long block = 0; block < kBlocks; ++block) {
      const PackedBlock at = block_in(form, panel, block);
      if (form.shared) {
        unsigned char* halves = panel + (at.halves - panel);
        for (long i = 0; i < kPanel * (form.minima ? 2 : 1); ++i) put_half(halves + 2 * i, random());
        continue;
      }
      put_floats(panel + (at.scales - panel), form.subs() * kPanel * (form.minima ? 2 : 1));
    }
  }
}

/// Rows of activations, whole and in quants.
struct Rows {
  Rows(const Kernels& kernels, long count) : rows(count) {
    Random random;
    x = random.floats(rows * kCols);
    quants.resize(x.size());
    scales.resize(static_cast<std::size_t>(rows * kBlocks));
    sums.resize(scales.size());
    for (long r = 0; r < rows; ++r) {
      kernels.quantize_row(x.data() + r * kCols, kCols, r % 2 == 0 ? 32 : 96, quants.data() + r * kCols,
                           scales.data() + r * kBlocks, sums.data() + r * kBlocks);
    }
  }
  long rows;
  std::vector<float> x;
  std::vector<signed char> quants;
  std::vector<float> scales;
  std::vector<BlockSums> sums;
};

std::vector<float> matmul(const Kernels& kernels, PackedType type, const unsigned char* weights, const Rows& rows) {
  // Four slices, one of them empty.
  constexpr std::array<int, 5> kSlices{0, 64, 64, 128, kCols};
  const std::array<signed char, 16> nibbles = nibble_table(type);
  std::vector<float> y(static_cast<std::size_t>(rows.rows * kOutputs));
  LinearArgs args;
  args.type = type;
  args.weights = weights;
  args.panel_stride = panel_bytes(type);
  args.cols = kCols;
  args.out_rows = kOutputs;
  args.panel_end = kPanels;
  args.x = rows.x.data();
  args.x_stride = kCols;
  args.xq = rows.quants.data();
  args.x_scales = rows.scales.data();
  args.x_sums = rows.sums.data();
  args.nibble_quants = nibbles.data();
  args.rows = rows.rows;
  Aligned scratch(scratch_bytes(type, kCols) + 64);
  args.scratch = scratch.data();
  Aligned gathered(gathered_bytes(type, rows.rows, kCols));
  args.gathered = gathered.data();
  args.sums[0] = {.slice_begin = kSlices.data(),
                  .slices = static_cast<int>(kSlices.size()) - 1,
                  .y = y.data(),
                  .y_stride = kOutputs};
  kernels.linear(args);
  return y;
}

std::vector<float> attention(const Kernels& kernels, CacheType type) {
  constexpr int kKeys = 13;
  constexpr int kHead = 40;
  constexpr int kRows = 3;
  Random random;
  Aligned keys(key_group_bytes(type, kHead)), values(value_page_bytes(type, kHead));
  for (int key = 0; key < kKeys; ++key) {
    kernels.store_key(random.floats(kHead).data(), kHead, type, keys.data(), key);
    kernels.store_value(random.floats(kHead).data(), kHead, type, values.data(), key);
  }
  const unsigned char* k_page = keys.data();
  const unsigned char* v_page = values.data();
  const std::vector<float> q = random.floats(kRows * kHead);
  std::vector<float> out(q.size());
  std::array<const float*, kRows> q_rows;
  std::array<float*, kRows> out_rows;
  for (int r = 0; r < kRows; ++r) {
    q_rows[static_cast<std::size_t>(r)] = q.data() + r * kHead;
    out_rows[static_cast<std::size_t>(r)] = out.data() + r * kHead;
  }
  const std::array<int, kRows> visible{kKeys - 2, kKeys - 1, kKeys};
  Aligned scratch(kAttentionRows * (kAttentionSegment + 2 * value_stride_of(kHead)) * 4);
  AttentionArgs args;
  args.k_pages = &k_page;
  args.v_pages = &v_page;
  args.type = type;
  args.head_dim = kHead;
  args.v_stride = static_cast<int>(value_stride_of(kHead));
  args.scale = 0.25f;
  args.rows = kRows;
  args.q = q_rows.data();
  args.out = out_rows.data();
  args.visible = visible.data();
  args.scratch = reinterpret_cast<float*>(scratch.data());
  kernels.attention(args);
  return out;
}

/// What works on one row, all after another.
std::vector<float> rows_of(const Kernels& kernels) {
  constexpr long kRow = 77;
  Random random;
  const std::vector<float> x = random.floats(kRow), w = random.floats(kRow), b = random.floats(kRow);
  std::vector<float> all, y(kRow);
  const auto keep = [&] { all.insert(all.end(), y.begin(), y.end()); };
  kernels.rms_norm(x.data(), w.data(), 1e-5f, kRow, y.data());
  keep();
  kernels.layer_norm(x.data(), w.data(), b.data(), 1e-5f, kRow, y.data());
  keep();
  kernels.silu_mul(x.data(), w.data(), kRow, y.data());
  keep();
  kernels.gelu_mul(x.data(), w.data(), kRow, y.data());
  keep();
  kernels.gelu_erf(x.data(), kRow, y.data());
  keep();
  kernels.softmax(x.data(), kRow, y.data());
  keep();
  kernels.rope(y.data(), w.data(), b.data(), kRow / 2, true);
  keep();
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct NamedType {
  PackedType type;
  std::string_view name;
};
constexpr std::array kTypes{NamedType{PackedType::kF32, "matmul of f32"},
                            NamedType{PackedType::kF16, "matmul of f16"},
                            NamedType{PackedType::kBF16, "matmul of bf16"},
                            NamedType{PackedType::kQ8_0, "matmul of q8_0"},
                            NamedType{PackedType::kQ4_0, "matmul of q4_0"},
                            NamedType{PackedType::kInt8, "matmul of int8"},
                            NamedType{PackedType::kBytes16, "matmul of bytes with 16 to a scale"},
                            NamedType{PackedType::kBytes32Min, "matmul of bytes with minima"},
                            NamedType{PackedType::kNibbles16, "matmul of nibbles with 16 to a scale"},
                            NamedType{PackedType::kNibbles16Min, "matmul of nibbles with 16 to a scale and minima"},
                            NamedType{PackedType::kNibbles32, "matmul of nibbles by a table"},
                            NamedType{PackedType::kNibbles32Min, "matmul of nibbles with minima"},
                            NamedType{PackedType::kQ2_K, "matmul of q2_k"},
                            NamedType{PackedType::kQ3_K, "matmul of q3_k"},
                            NamedType{PackedType::kQ4_K, "matmul of q4_k"},
                            NamedType{PackedType::kQ5_K, "matmul of q5_k"},
                            NamedType{PackedType::kQ6_K, "matmul of q6_k"},
                            NamedType{PackedType::kIQ4_XS, "matmul of iq4_xs"}};

}  // namespace

std::string_view first_difference(const Kernels& kernels, const Kernels& reference) {
  // One row, a few, and more than a tile takes, with some left over.
  for (const long count : {1, 3, 31}) {
    const Rows expected(reference, count);
    const Rows found(kernels, count);
    const bool same_sums =
        std::memcmp(found.sums.data(), expected.sums.data(), found.sums.size() * sizeof(BlockSums)) == 0;
    if (found.quants != expected.quants || !same_sums || !same_bits(found.scales, expected.scales)) {
      return "quantisation of activations";
    }
    Random random;
    for (const NamedType& type : kTypes) {
      Aligned weights(kPanels * panel_bytes(type.type));
      for (long panel = 0; panel < kPanels; ++panel) {
        fill_panel(type.type, random, weights.data() + panel * panel_bytes(type.type));
      }
      if (!same_bits(matmul(kernels, type.type, weights.data(), expected),
                     matmul(reference, type.type, weights.data(), expected))) {
        return type.name;
      }
    }
  }
  for (const CacheType type : {CacheType::kF32, CacheType::kF16, CacheType::kQ8_0}) {
    if (!same_bits(attention(kernels, type), attention(reference, type))) return "attention";
  }
  return same_bits(rows_of(kernels), rows_of(reference)) ? "" : "an operation on rows";
}

}  // namespace butterfly
