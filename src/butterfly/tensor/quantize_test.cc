#include "butterfly/tensor/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

std::vector<float> round_trip(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(*row_bytes(type, values.size()));
  encode_row(type, values, bytes);
  std::vector<float> result(values.size());
  decode_row(type, bytes, result);
  return result;
}

std::vector<float> normal_values(std::size_t count) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

TEST(Quantize, ErrorsStayWithinHalfAStepOfTheBlocksScale) {
  const std::vector<float> values = normal_values(32 * 64);
  struct Case {
    DType type;
    float steps;  // between zero and the block's largest value
  };
  for (const Case& c : {Case{DType::kQ8_0, 127.0f}, Case{DType::kQ4_0, 8.0f}}) {
    const std::vector<float> result = round_trip(c.type, values);
    for (std::size_t b = 0; b < values.size(); b += 32) {
      float largest = 0;
      for (std::size_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(values[i]));
      // Q4_0 has 8 steps on the extreme's side and 7 on the other, where values beyond 7.5 steps lose up to one step.
      const float step = largest / c.steps * (c.type == DType::kQ4_0 ? 1.0f : 0.5f);
      for (std::size_t i = b; i < b + 32; ++i) EXPECT_NEAR(result[i], values[i], step * 1.01f + largest * 0x1p-11f);
    }
  }
}

TEST(Quantize, Q8ScaleIsTheLargestMagnitudeOver127AndTiesRoundAway) {
  std::vector<float> values(32, 0.0f);
  values[0] = -127.0f;
  values[1] = 2.5f;
  values[2] = -3.5f;
  BlockQ8_0 block;
  encode_row(DType::kQ8_0, values, std::as_writable_bytes(std::span(&block, 1)));
  EXPECT_EQ(half_to_float(block.scale), 1.0f);
  EXPECT_EQ(block.quants[0], -127);
  EXPECT_EQ(block.quants[1], 3);
  EXPECT_EQ(block.quants[2], -4);
}

TEST(Quantize, Q4ScaleHasTheSignThatMapsTheExtremeToMinusEight) {
  std::vector<float> values(32, 0.0f);
  values[3] = 4.0f;
  values[19] = -4.0f;  // the same magnitude, later: the first decides
  BlockQ4_0 block;
  encode_row(DType::kQ4_0, values, std::as_writable_bytes(std::span(&block, 1)));
  EXPECT_EQ(half_to_float(block.scale), -0.5f);
  EXPECT_EQ(block.quants[3] & 15, 0);
  EXPECT_EQ(block.quants[3] >> 4, 15);  // +8 does not exist: clamped to +7
  EXPECT_EQ(block.quants[0] & 15, 8);
}

TEST(Quantize, ZerosAndTinyBlocksStayFinite) {
  for (DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (float value : {0.0f, 1e-45f, std::numeric_limits<float>::min()}) {
      for (float result : round_trip(type, std::vector<float>(32, value))) EXPECT_EQ(result, 0.0f) << value;
    }
  }
}

TEST(Quantize, NoValueIsUndefinedBehaviour) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    for (float value : {infinity, -infinity, std::nanf(""), std::numeric_limits<float>::max()}) {
      std::vector<float> values(32, 1.0f);
      values[5] = value;
      EXPECT_EQ(round_trip(type, values).size(), 32u);
    }
  }
}

TEST(Quantize, LargestValueSurvivesAndTwiceItDoesNot) {
  for (DType type : {DType::kF16, DType::kQ8_0, DType::kQ4_0}) {
    EXPECT_TRUE(std::isfinite(round_trip(type, std::vector<float>(32, -largest_value(type)))[0]));
    EXPECT_FALSE(std::isfinite(round_trip(type, std::vector<float>(32, -2 * largest_value(type)))[0]));
  }
}

TEST(Quantize, EveryTypeSurvivesWhatIsNoUsualValue) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float denormal = 1e-45f;
  for (DType type : kAllDTypes) {
    if (!can_encode(type)) continue;
    const float largest = largest_value(type);
    for (const float value : {largest, -largest, 0.0f, denormal, -denormal}) {
      for (const float result : round_trip(type, std::vector<float>(kSuperBlock, value))) {
        EXPECT_TRUE(std::isfinite(result)) << to_string(type) << " " << value;
      }
      std::vector<float> alone = normal_values(kSuperBlock);
      alone[77] = value;
      for (const float result : round_trip(type, alone)) EXPECT_TRUE(std::isfinite(result)) << to_string(type);
    }
    for (const float value : {infinity, -infinity, std::nanf(""), std::numeric_limits<float>::max()}) {
      std::vector<float> values = normal_values(kSuperBlock);
      values[5] = value;
      EXPECT_EQ(round_trip(type, values).size(), values.size()) << to_string(type);
      EXPECT_EQ(round_trip(type, std::vector<float>(kSuperBlock, value)).size(), values.size()) << to_string(type);
    }
  }
}

TEST(Quantize, FloatTypesKeepWhatTheyCanHold) {
  const std::vector<float> values{0.0f, -0.0f, 1.5f, -2.0f, 0.25f};
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) EXPECT_EQ(round_trip(type, values), values);
}

}  // namespace
}  // namespace butterfly
