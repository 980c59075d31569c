// Every half and bfloat16, and every float beside a rounding border, against arithmetic in double.
#include "butterfly/tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "butterfly/tensor/dtype.h"

namespace butterfly {
namespace {

/// A format of 1 sign bit, `exponent_bits` and `mantissa_bits`, by its definition.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double value(std::uint32_t bits) const {
    const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double sign = bits >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return sign * std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias() - mantissa_bits);
  }
};

constexpr Format kHalf{5, 10};
constexpr Format kBfloat16{8, 7};

float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Half, EveryHalfBecomesTheFloatOfItsDefinition) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const double expected = kHalf.value(bits);
    const float got = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << bits;
      ASSERT_EQ(std::signbit(got), bits >= 0x8000u) << bits;
    }
  }
}

TEST(Half, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const float value = half_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), bits);
    }
  }
}

/// Between each pair of neighbours in the target format: the border and the floats just beside it.
template <typename Convert>
void expect_nearest_even(const Format& format, std::uint32_t largest_finite, const Convert& convert) {
  for (std::uint32_t bits = 0; bits <= largest_finite; ++bits) {
    const double low = format.value(bits);
    const double high = bits == largest_finite ? std::ldexp(1.0, format.bias() + 1) : format.value(bits + 1);
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << "borders are floats";
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    const std::uint32_t sign = 1u << (format.exponent_bits + format.mantissa_bits);
    ASSERT_EQ(convert(middle), even) << bits;
    ASSERT_EQ(convert(-middle), even | sign) << bits;
    ASSERT_EQ(convert(std::nextafterf(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(convert(std::nextafterf(middle, HUGE_VALF)), bits + 1) << bits;
  }
}

TEST(Half, RoundsToNearestEvenAtEveryBorder) {
  expect_nearest_even(kHalf, 0x7bffu, float_to_half);
}

TEST(Half, OverflowIsInfinityUnderflowIsZeroNanStaysNan) {
  EXPECT_EQ(float_to_half(65519.996f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(float_to_half(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(float_to_half(-0.0f), 0x8000);
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(from_bits(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(half_to_float(float_to_half(from_bits(0xffffffffu)))));
}

TEST(Bfloat16, EveryOneBecomesTheFloatOfItsDefinitionAndComesBack) {
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    const double expected = kBfloat16.value(bits);
    const float got = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got));
      ASSERT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(got))));
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << bits;
      ASSERT_EQ(float_to_bfloat16(got), bits);
    }
  }
}

TEST(Bfloat16, RoundsToNearestEvenAtEveryBorder) {
  expect_nearest_even(kBfloat16, 0x7f7fu, float_to_bfloat16);
  EXPECT_EQ(float_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Bfloat16, NanWithOnlyLowBitsStaysNan) {
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(from_bits(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(from_bits(0x7fffffffu)))));
}

TEST(DType, RowsAreWholeBlocksAndSizesDoNotWrap) {
  EXPECT_EQ(row_bytes(DType::kF32, 3), 12u);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 64), 68u);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 32), 18u);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 0), 0u);
  EXPECT_FALSE(row_bytes(DType::kQ8_0, 31).has_value());
  EXPECT_FALSE(row_bytes(DType::kF32, std::uint64_t{1} << 62).has_value());
}

TEST(DType, NamesComeBackAsTheSameType) {
  for (DType type : kAllDTypes) EXPECT_EQ(parse_dtype(to_string(type)), type);
  EXPECT_FALSE(parse_dtype("F32").has_value());
}

}  // namespace
}  // namespace butterfly
