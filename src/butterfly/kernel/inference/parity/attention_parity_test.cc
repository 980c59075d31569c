// Attention on every instruction set of this machine equals `reference` by memcmp, whatever the rows and keys, windows,
// caps, slopes and sinks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>

#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/inference/parity/parity_values_test.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

constexpr std::array kTypes{CacheType::kF32, CacheType::kF16, CacheType::kQ8_0};

/// Keys and values of one head in cache pages, filled through the kernels that the cache uses.
struct CachedHead {
  CachedHead(int keys, int head_dim, CacheType cache_type, int value_dim)
      : type(cache_type), group_bytes(key_group_bytes(type, head_dim)), page_bytes(value_page_bytes(type, value_dim)) {
    const auto k = random_floats(static_cast<std::size_t>(keys * head_dim), 21);
    const auto v = random_floats(static_cast<std::size_t>(keys * value_dim), 22);
    const long k_page = kKvPageTokens / kPanel * group_bytes;
    const int pages = (keys + kKvPageTokens - 1) / kKvPageTokens;
    k_data.resize(static_cast<std::size_t>(pages * k_page));
    v_data.resize(static_cast<std::size_t>(pages * page_bytes));
    for (int p = 0; p < pages; ++p) {
      k_pages.push_back(k_data.data() + p * k_page);
      v_pages.push_back(v_data.data() + p * page_bytes);
    }
    for (int key = 0; key < keys; ++key) {
      kReferenceKernels.store_key(k.data() + key * head_dim, head_dim, type, k_data.data() + key / kPanel * group_bytes,
                                  key % kPanel);
      store_value(key, v.data() + key * value_dim, value_dim);
    }
  }
  CachedHead(int keys, int head_dim, CacheType cache_type) : CachedHead(keys, head_dim, cache_type, head_dim) {}
  void store_value(int key, const float* x, int value_dim) {
    unsigned char* page = v_data.data() + key / kKvPageTokens * page_bytes;
    kReferenceKernels.store_value(x, value_dim, type, page, key % kKvPageTokens);
  }
  CacheType type;
  long group_bytes, page_bytes;
  std::vector<unsigned char> k_data, v_data;
  std::vector<const unsigned char*> k_pages, v_pages;
};

/// What a row of attention may have besides its keys, [rows] each where it is not empty.
struct AttentionExtras {
  int value_dim = 0;  // 0: values of their own; else the first elements of the keys
  std::vector<int> first{};
  float cap = 0;
  std::vector<float> slopes{}, sinks{};
  std::vector<float> biases{};  // of keys at distances from -(biases.size() / 2) on; row r is at key visible[7] - 8 + r
};

std::vector<float> attend(Isa isa, const CachedHead& head, int head_dim, const std::vector<int>& visible, int first,
                          int rows, const AttentionExtras& extras = {}) {
  const auto q = random_floats(visible.size() * static_cast<std::size_t>(head_dim), 23);
  const int value_dim = extras.value_dim > 0 ? extras.value_dim : head_dim;
  std::vector<float> out(static_cast<std::size_t>(rows * value_dim));
  std::vector<const float*> q_rows;
  std::vector<float*> out_rows;
  for (int r = 0; r < rows; ++r) {
    q_rows.push_back(q.data() + (first + r) * head_dim);
    out_rows.push_back(out.data() + r * value_dim);
  }
  std::vector<float> scratch(
      static_cast<std::size_t>(kAttentionRows * (kAttentionSegment + 2 * value_stride_of(value_dim))));
  AttentionArgs args;
  args.k_pages = head.k_pages.data();
  if (extras.value_dim == 0) args.v_pages = head.v_pages.data();
  args.value_dim = extras.value_dim;
  args.type = head.type;
  args.head_dim = head_dim;
  args.v_stride = static_cast<int>(value_stride_of(value_dim));
  args.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  args.rows = rows;
  args.q = q_rows.data();
  args.out = out_rows.data();
  args.visible = visible.data() + first;
  args.scratch = scratch.data();
  if (!extras.first.empty()) args.first = extras.first.data() + first;
  args.cap = extras.cap;
  if (!extras.slopes.empty()) args.slopes = extras.slopes.data() + first;
  if (!extras.sinks.empty()) args.sinks = extras.sinks.data() + first;
  std::vector<const float*> biases;
  for (int r = first; r < first + rows && !extras.biases.empty(); ++r) {
    const int position = std::max(0, visible.back() - 8 + r);
    biases.push_back(extras.biases.data() + extras.biases.size() / 2 - position);
  }
  if (!biases.empty()) args.biases = biases.data();
  unchecked_kernels(isa).attention(args);
  return out;
}

TEST(ParityAttention, EqualsReferenceForOddHeadsKeysAndAllCacheTypes) {
  for (const int head_dim : {8, 16, 20, 32, 64, 80, 128}) {
    for (const CacheType type : kTypes) {
      for (const int keys : {1, 15, 16, 17, 63, 255, 256, 257, 700}) {
        const CachedHead head(keys, head_dim, type);
        std::vector<int> visible;
        for (int r = 0; r < 8; ++r) visible.push_back(std::max(1, keys - 7 + r));
        const auto expected = attend(Isa::kReference, head, head_dim, visible, 0, 8);
        for (const Isa isa : supported_isas()) {
          EXPECT_TRUE(same_bits(attend(isa, head, head_dim, visible, 0, 8), expected))
              << to_string(isa) << " head_dim " << head_dim << " keys " << keys << " type " << static_cast<int>(type);
          // One row at a time, as decode does, gives the same bits as eight at once.
          for (int r = 0; r < 8; ++r) {
            const auto row = attend(isa, head, head_dim, visible, r, 1);
            EXPECT_EQ(std::memcmp(row.data(), expected.data() + r * head_dim, row.size() * 4), 0) << to_string(isa);
          }
        }
      }
    }
  }
}

class ParityWindows : public testing::TestWithParam<std::tuple<CacheType, int>> {};

TEST_P(ParityWindows, CapsSlopesAndSinksEqualReference) {
  const auto [type, head_dim] = GetParam();
  for (const int keys : {9, 100, 257, 700}) {
    for (const int window : {1, 5, 16, 250, 256, 300}) {
      const CachedHead head(keys, head_dim, type);
      std::vector<int> visible;
      AttentionExtras windowed;
      AttentionExtras all{.cap = 2.5f};
      for (int r = 0; r < 8; ++r) {
        visible.push_back(std::max(1, keys - 7 + r));
        windowed.first.push_back(std::max(0, visible.back() - window));
        all.slopes.push_back(std::ldexp(1.0f, -r));
        all.sinks.push_back(static_cast<float>(r) - 4.0f);
      }
      all.first = windowed.first;
      for (const AttentionExtras& extras : {windowed, all}) {
        const auto expected = attend(Isa::kReference, head, head_dim, visible, 0, 8, extras);
        for (const Isa isa : supported_isas()) {
          EXPECT_TRUE(same_bits(attend(isa, head, head_dim, visible, 0, 8, extras), expected))
              << to_string(isa) << " keys " << keys << " window " << window << " cap " << extras.cap;
          for (int r = 0; r < 8; ++r) {
            const auto row = attend(isa, head, head_dim, visible, r, 1, extras);
            EXPECT_EQ(std::memcmp(row.data(), expected.data() + r * head_dim, row.size() * 4), 0) << to_string(isa);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ParityWindows,
                         testing::Combine(testing::Values(CacheType::kF16, CacheType::kQ8_0), testing::Values(20, 72)));

/// As encoders have them: rows see keys behind themselves, windows reach to both sides, and scores have biases.
TEST(ParityAttention, BiasesAndKeysOnBothSidesEqualReference) {
  for (const int head_dim : {20, 64}) {
    for (const int keys : {1, 9, 100, 257, 700}) {
      const CachedHead head(keys, head_dim, CacheType::kF32);
      for (const int half : {0, 3, 64, 300}) {
        std::vector<int> visible;
        AttentionExtras extras{.biases = random_floats(2 * static_cast<std::size_t>(keys) + 1, 31)};
        for (int r = 0; r < 8; ++r) {
          const int position = std::max(0, keys - 8 + r);
          visible.push_back(half == 0 ? keys : std::min(keys, position + half + 1));
          extras.first.push_back(half == 0 ? 0 : std::max(0, position - half));
        }
        AttentionExtras all = extras;
        all.cap = 2.5f;
        for (const AttentionExtras& one : {extras, all}) {
          const auto expected = attend(Isa::kReference, head, head_dim, visible, 0, 8, one);
          AttentionExtras without = one;
          without.biases.clear();
          const auto plain = attend(Isa::kReference, head, head_dim, visible, 0, 8, without);
          EXPECT_EQ(same_bits(plain, expected), keys == 1) << "biases change something";
          for (const Isa isa : supported_isas()) {
            EXPECT_TRUE(same_bits(attend(isa, head, head_dim, visible, 0, 8, one), expected))
                << to_string(isa) << " keys " << keys << " window " << half;
            for (int r = 0; r < 8; ++r) {
              const auto row = attend(isa, head, head_dim, visible, r, 1, one);
              EXPECT_EQ(std::memcmp(row.data(), expected.data() + r * head_dim, row.size() * 4), 0) << to_string(isa);
            }
          }
        }
      }
    }
  }
}

TEST(ParityAttention, ValuesWithinKeysEqualReferenceAndValuesKeptApart) {
  for (const auto& [head_dim, value_dim] : {std::pair{24, 17}, {40, 32}, {72, 64}, {80, 3}}) {
    for (const CacheType type : kTypes) {
      for (const int keys : {1, 15, 17, 63, 256, 300}) {
        CachedHead head(keys, head_dim, type);
        std::vector<int> visible;
        AttentionExtras extras{.value_dim = value_dim};
        for (int r = 0; r < 8; ++r) {
          visible.push_back(std::max(1, keys - 7 + r));
          extras.sinks.push_back(static_cast<float>(r) - 4.0f);
        }
        const auto expected = attend(Isa::kReference, head, head_dim, visible, 0, 8, extras);
        // The same numbers as values that are stored apart.
        const auto k = random_floats(static_cast<std::size_t>(keys * head_dim), 21);
        for (int key = 0; key < keys; ++key) {
          head.store_value(key, k.data() + key * head_dim, head_dim);
        }
        const auto apart = attend(Isa::kReference, head, head_dim, visible, 0, 8, {.sinks = extras.sinks});
        for (int r = 0; r < 8; ++r) {
          EXPECT_EQ(std::memcmp(expected.data() + r * value_dim, apart.data() + r * head_dim,
                                static_cast<std::size_t>(value_dim) * 4),
                    0);
        }
        for (const Isa isa : supported_isas()) {
          EXPECT_TRUE(same_bits(attend(isa, head, head_dim, visible, 0, 8, extras), expected))
              << to_string(isa) << " " << head_dim << " of which " << value_dim << " keys " << keys << " type "
              << static_cast<int>(type);
          for (int r = 0; r < 8; ++r) {
            const auto row = attend(isa, head, head_dim, visible, r, 1, extras);
            EXPECT_EQ(std::memcmp(row.data(), expected.data() + r * value_dim, row.size() * 4), 0) << to_string(isa);
          }
        }
      }
    }
  }
}

/// What encode_row makes of one row, as floats; a block that is not whole is filled up with zeros.
std::vector<float> through_q8_0(const float* x, int n) {
  std::vector<float> values(static_cast<std::size_t>((n + kQuantBlock - 1) / kQuantBlock * kQuantBlock));
  std::copy_n(x, n, values.begin());
  std::vector<std::byte> blocks(*row_bytes(DType::kQ8_0, values.size()));
  encode_row(DType::kQ8_0, values, blocks);
  decode_row(DType::kQ8_0, blocks, values);
  return values;
}

TEST(ParityAttention, BlocksOfQ8_0AreThoseOfFilesAlsoWhereTheLastIsShort) {
  for (const int head_dim : {20, 40, 64}) {
    const int keys = 300;
    const CachedHead head(keys, head_dim, CacheType::kQ8_0);
    const auto out = attend(Isa::kReference, head, head_dim, {keys}, 0, 1);
    const auto k = random_floats(static_cast<std::size_t>(keys * head_dim), 21);
    const auto v = random_floats(static_cast<std::size_t>(keys * head_dim), 22);
    const auto q = random_floats(static_cast<std::size_t>(head_dim), 23);
    double total = 0;
    std::vector<double> sums(q.size());
    for (int j = 0; j < keys; ++j) {
      const auto key = through_q8_0(k.data() + j * head_dim, head_dim);
      const auto value = through_q8_0(v.data() + j * head_dim, head_dim);
      double dot = 0;
      for (std::size_t d = 0; d < q.size(); ++d) dot += static_cast<double>(q[d]) * static_cast<double>(key[d]);
      const double p = std::exp(dot / std::sqrt(static_cast<double>(head_dim)));
      total += p;
      for (std::size_t d = 0; d < q.size(); ++d) sums[d] += p * static_cast<double>(value[d]);
    }
    for (std::size_t d = 0; d < q.size(); ++d) EXPECT_NEAR(out[d], sums[d] / total, 1e-5) << head_dim;
  }
}

TEST(ParityAttention, ExtrasThatChangeNothingKeepEveryBit) {
  const int head_dim = 32, keys = 600;
  const CachedHead head(keys, head_dim, CacheType::kF32);
  const auto plain = attend(Isa::kReference, head, head_dim, {keys}, 0, 1);
  const AttentionExtras extras{.first = {0}, .cap = 0, .slopes = {0.0f}, .sinks = {-1e30f}};
  EXPECT_TRUE(same_bits(attend(Isa::kReference, head, head_dim, {keys}, 0, 1, extras), plain));
}

TEST(ParityAttention, WindowsCapsSlopesAndSinksAreCloseToDoublePrecision) {
  const int head_dim = 16, keys = 300, first = 30;
  const CachedHead head(keys, head_dim, CacheType::kF32);
  const AttentionExtras extras{.first = {first}, .cap = 1.5f, .slopes = {0.03125f}, .sinks = {0.75f}};
  const auto out = attend(Isa::kReference, head, head_dim, {keys}, 0, 1, extras);
  const auto k = random_floats(static_cast<std::size_t>(keys * head_dim), 21);
  const auto v = random_floats(static_cast<std::size_t>(keys * head_dim), 22);
  const auto q = random_floats(static_cast<std::size_t>(head_dim), 23);
  double total = std::exp(0.75);
  std::vector<double> sums(static_cast<std::size_t>(head_dim));
  for (int j = first; j < keys; ++j) {
    const auto at = static_cast<std::size_t>(j * head_dim);
    double dot = 0;
    for (std::size_t d = 0; d < sums.size(); ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[at + d]);
    const double score = 1.5 * std::tanh(dot / 4.0 / 1.5) - 0.03125 * (keys - 1 - j);
    total += std::exp(score);
    for (std::size_t d = 0; d < sums.size(); ++d) sums[d] += std::exp(score) * static_cast<double>(v[at + d]);
  }
  for (std::size_t d = 0; d < sums.size(); ++d) EXPECT_NEAR(out[d], sums[d] / total, 1e-5);
}

TEST(ParityAttention, IsCloseToSoftmaxInDoublePrecision) {
  const int head_dim = 32, keys = 600;
  const CachedHead head(keys, head_dim, CacheType::kF32);
  const auto out = attend(Isa::kReference, head, head_dim, {keys}, 0, 1);
  const auto k = random_floats(static_cast<std::size_t>(keys * head_dim), 21);
  const auto v = random_floats(static_cast<std::size_t>(keys * head_dim), 22);
  const auto q = random_floats(static_cast<std::size_t>(head_dim), 23);
  std::vector<double> p(static_cast<std::size_t>(keys));
  double total = 0;
  for (int j = 0; j < keys; ++j) {
    double dot = 0;
    for (int d = 0; d < head_dim; ++d)
      dot += static_cast<double>(q[static_cast<std::size_t>(d)]) * k[static_cast<std::size_t>(j * head_dim + d)];
    total += p[static_cast<std::size_t>(j)] = std::exp(dot / std::sqrt(32.0));
  }
  for (int d = 0; d < head_dim; ++d) {
    double sum = 0;
    for (int j = 0; j < keys; ++j)
      sum += p[static_cast<std::size_t>(j)] / total * v[static_cast<std::size_t>(j * head_dim + d)];
    EXPECT_NEAR(out[static_cast<std::size_t>(d)], sum, 1e-5);
  }
}

}  // namespace
}  // namespace butterfly
