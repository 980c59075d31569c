// Conversions of rows to halves and q8_0 and back: every instruction set of this machine equals `reference` by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "butterfly/kernel/inference/cache_layout_inl.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/inference/parity/parity_values_test.h"
#include "butterfly/kernel/inference/row_codec.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

/// Every sign and exponent, with mantissas around what rounding to 10 and to 7 bits, ties and carries turn on.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (const std::uint32_t base : {0u, 0x1000u, 0x2000u, 0x3000u, 0x200000u, 0x400000u, 0x7ff000u, 0x7fe000u}) {
      for (const std::uint32_t offset : {0u, 1u, 2u, 0xfffu, 0x7fffffu}) {
        values.push_back(std::bit_cast<float>(top << 23 | ((base + offset) & 0x7fffffu)));
      }
    }
  }
  for (float value : random_floats(10'000, 31, 40.0f)) values.push_back(value);
  return values;
}

std::vector<std::byte> encoded(Isa isa, DType type, std::span<const float> values) {
  std::vector<std::byte> bytes(*row_bytes(type, values.size()) + 1, std::byte{0x5a});
  // One byte off: nothing may want alignment.
  encode_row(unchecked_kernels(isa), type, values, MutableByteSpan(bytes).subspan(1));
  return bytes;
}

std::vector<float> decoded(Isa isa, DType type, ByteSpan bytes, std::size_t count) {
  std::vector<float> values(count + 1, 7.0f);  // one more than is written
  decode_row(unchecked_kernels(isa), type, bytes, std::span(values).first(count));
  return values;
}

TEST(ParityConversion, EveryHalfBecomesTheSameFloat) {
  std::vector<std::uint16_t> halves(0x10000);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const ByteSpan bytes = std::as_bytes(std::span(halves));
  const auto expected = decoded(Isa::kReference, DType::kF16, bytes, halves.size());
  for (const Isa isa : supported_isas()) {
    EXPECT_TRUE(same_bits(decoded(isa, DType::kF16, bytes, halves.size()), expected)) << to_string(isa);
    for (std::size_t i = 0; i < halves.size(); i += 777) {  // alone: the remainder's code
      const auto one = decoded(isa, DType::kF16, bytes.subspan(2 * i, 2), 1);
      EXPECT_EQ(std::memcmp(one.data(), &expected[i], 4), 0) << to_string(isa) << " " << i;
    }
  }
}

TEST(ParityConversion, EveryInterestingFloatBecomesTheSameHalfAtEveryLength) {
  const auto values = interesting_floats();
  const auto expected = encoded(Isa::kReference, DType::kF16, values);
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(encoded(isa, DType::kF16, values), expected) << to_string(isa);
    for (std::size_t n = 0; n < 70; ++n) {
      const std::span some = std::span(values).subspan(997 * n % (values.size() - n), n);
      EXPECT_EQ(encoded(isa, DType::kF16, some), encoded(Isa::kReference, DType::kF16, some)) << to_string(isa) << n;
    }
  }
}

/// Blocks of 32 whose largest value makes the quotients land on and beside halves, and blocks of anything at all.
std::vector<float> interesting_blocks() {
  std::vector<float> values;
  for (const float largest : {127.0f, 1.0f, 3.7f, 1e-38f, 1e-42f, 1e-45f, 3e38f, 8.3e6f}) {
    for (int k = 0; k < 127; ++k) {
      values.push_back(k % 2 == 0 ? largest : -largest);
      const float middle = (static_cast<float>(k) + 0.5f) / 127.0f * largest;
      float below = middle, above = middle;
      for (int i = 0; i < 31; ++i) {
        const float value = i % 2 == 0 ? (below = std::nextafter(below, 0.0f)) : (above = std::nextafter(above, 1e38f));
        values.push_back(i % 3 == 0 ? -value : i == 30 ? middle : value);
      }
    }
  }
  const auto anything = interesting_floats();
  values.insert(values.end(), anything.begin(),
                anything.begin() + static_cast<std::ptrdiff_t>(anything.size() / 32 * 32));
  std::mt19937 engine(32);
  for (int i = 0; i < 32'000; ++i) values.push_back(anything[engine() % anything.size()]);
  return values;
}

TEST(ParityConversion, EveryInterestingBlockBecomesTheSameQ8_0) {
  const auto values = interesting_blocks();
  const auto expected = encoded(Isa::kReference, DType::kQ8_0, values);
  for (const Isa isa : supported_isas()) {
    const auto got = encoded(isa, DType::kQ8_0, values);
    const auto [a, b] = std::ranges::mismatch(got, expected);
    EXPECT_TRUE(a == got.end()) << to_string(isa) << " block " << (a - got.begin() - 1) / 34 << " byte "
                                << (a - got.begin() - 1) % 34;
  }
}

TEST(ParityConversion, EveryScaleAndEveryQuantOfQ8_0BecomesTheSameFloat) {
  std::vector<std::byte> blocks(std::size_t{0x10000} * 34);
  std::mt19937 engine(33);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(engine());
  for (std::size_t i = 0; i < 0x10000; ++i) {
    const auto scale = static_cast<std::uint16_t>(i);
    std::memcpy(&blocks[i * 34], &scale, 2);
  }
  const std::size_t count = std::size_t{0x10000} * 32;
  const auto expected = decoded(Isa::kReference, DType::kQ8_0, blocks, count);
  for (const Isa isa : supported_isas()) {
    EXPECT_TRUE(same_bits(decoded(isa, DType::kQ8_0, blocks, count), expected)) << to_string(isa);
  }
}

TEST(ParityConversion, KeysAndValuesAreCachedWithTheSameBits) {
  const auto values = interesting_floats();
  for (const CacheType type : {CacheType::kF32, CacheType::kF16, CacheType::kQ8_0}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{97}, values.size()}) {
      const auto n = static_cast<long>(count);
      const auto stored = [&](const Kernels& kernels) {
        std::vector<unsigned char> bytes(
            static_cast<std::size_t>(key_group_bytes(type, n) + value_page_bytes(type, n)));
        kernels.store_key(values.data(), n, type, bytes.data(), 3);
        kernels.store_value(values.data(), n, type, bytes.data() + key_group_bytes(type, n), kKvPageTokens - 1);
        return bytes;
      };
      const auto expected = stored(kReferenceKernels);
      for (const Isa isa : supported_isas()) EXPECT_EQ(stored(unchecked_kernels(isa)), expected) << to_string(isa) << n;
    }
  }
}

TEST(ParityConversion, InfinityIsCachedAsTheLargestHalfAndNaNAsItself) {
  constexpr long kCount = 40;  // two blocks of q8_0
  std::vector<float> values(kCount, 1.0f);
  values[0] = -std::numeric_limits<float>::infinity();
  values[35] = std::numeric_limits<float>::quiet_NaN();
  std::vector<unsigned char> group(static_cast<std::size_t>(key_group_bytes(CacheType::kQ8_0, kCount)));
  kReferenceKernels.store_key(values.data(), kCount, CacheType::kQ8_0, group.data(), 0);
  const auto scale = [&](std::size_t block) {
    std::uint16_t half = 0;
    std::memcpy(&half, group.data() + kCount * kPanel + block * 2 * kPanel, 2);
    return half_to_float(half);
  };
  EXPECT_NEAR(scale(0) * static_cast<float>(static_cast<signed char>(group[0])), -65504.0f, 40.0f);
  EXPECT_TRUE(std::isnan(scale(1)));
}

}  // namespace
}  // namespace butterfly
