#include "butterfly/model/format/safetensors/scaled_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "butterfly/base/json.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// A safetensors file of two tensors, in memory.
struct TwoTensors {
  TwoTensors(const nlohmann::json& values, std::string_view value_bytes, const nlohmann::json& scales,
             std::string_view scale_bytes) {
    nlohmann::json header{{"v", values}, {"w", scales}};
    header["v"]["data_offsets"] = {0, value_bytes.size()};
    header["w"]["data_offsets"] = {value_bytes.size(), value_bytes.size() + scale_bytes.size()};
    const std::string json = dump_json(header);
    const std::uint64_t length = json.size();
    bytes = std::string(reinterpret_cast<const char*>(&length), 8) + json + std::string(value_bytes) +
            std::string(scale_bytes);
    auto parsed = SafetensorsFile::parse(as_bytes(bytes), "two");
    EXPECT_TRUE(parsed) << parsed.error().message;
    file = std::move(*parsed);
  }
  ScaledTensor tensor() const { return {&file.entries().at("v"), &file.entries().at("w")}; }
  std::string bytes;
  SafetensorsFile file;
};

std::string random_bytes(std::size_t count, unsigned seed) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

std::vector<float> scaled_floats(const WeightView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.rows * view.cols));
  decode_row(view.type, view.bytes, values);
  return values;
}

nlohmann::json entry(const char* type, const std::vector<std::int64_t>& shape) {
  return {{"dtype", type}, {"shape", shape}};
}

TEST(ScaledTensors, EveryMxfp4ElementIsItsValueTimesItsScale) {
  constexpr std::array<float, 8> kMagnitudes{0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const std::string blocks = random_bytes(2 * 6 * 3 * 16, 5);
  std::string scales = random_bytes(2 * 6 * 3, 6);
  for (char& scale : scales) scale = static_cast<char>(100 + static_cast<unsigned char>(scale) % 50);
  const TwoTensors two(entry("U8", {2, 6, 3, 16}), blocks, entry("U8", {2, 6, 3}), scales);
  ASSERT_TRUE(check_mxfp4(two.tensor(), "v"));
  // The second rows of pairs of the second expert.
  const WeightView view = mxfp4_rows(two.tensor(), {.first = 7, .step = 2, .count = 3});
  EXPECT_EQ(view.type, DType::kMXFP4);
  ASSERT_EQ(view.cols, 96);
  const std::vector<float> values = scaled_floats(view);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t c = 0; c < 96; ++c) {
      const std::size_t group = (7 + 2 * r) * 3 + c / 32;
      const auto byte = static_cast<unsigned char>(blocks[group * 16 + c % 32 / 2]);
      const unsigned nibble = c % 2 == 0 ? byte & 15u : byte >> 4u;
      const float magnitude = std::ldexp(kMagnitudes[nibble % 8], static_cast<unsigned char>(scales[group]) - 127);
      EXPECT_EQ(values[r * 96 + c], nibble >= 8 ? -magnitude : magnitude) << r << " " << c;
    }
  }
}

TEST(ScaledTensors, EveryFp8CodeIsItsValueTimesTheScaleOfItsBlockRoundedOnce) {
  std::string codes(130 * 257, '\0');
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<char>(i % 257 % 256);
  std::vector<float> scales;
  for (int i = 0; i < 6; ++i) scales.push_back(0.013f * static_cast<float>(i + 1));
  const TwoTensors two(entry("F8_E4M3", {130, 257}), codes, entry("F32", {2, 3}),
                       as_text(std::as_bytes(std::span(scales))));
  ASSERT_TRUE(check_fp8(two.tensor(), "v"));
  const std::vector<float> values = scaled_floats(fp8_rows(two.tensor(), {126, 130}));
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t c = 0; c < 257; ++c) {
      const unsigned code = static_cast<unsigned>(c % 256);
      const float value = values[r * 257 + c];
      if ((code & 127) == 127) {
        EXPECT_TRUE(std::isnan(value));
        continue;
      }
      const int exponent = static_cast<int>(code >> 3 & 15);
      const float mantissa = static_cast<float>(code & 7) / 8.0f + (exponent > 0 ? 1.0f : 0.0f);
      const float magnitude = std::ldexp(mantissa, std::max(exponent, 1) - 7);
      const float product = (code >= 128 ? -magnitude : magnitude) * scales[(126 + r) / 128 * 3 + c / 128];
      EXPECT_EQ(value, bfloat16_to_float(float_to_bfloat16(product))) << r << " " << c;
    }
  }
}

TEST(ScaledTensors, Int8HasAScaleForEachRowOrOneForAll) {
  const std::string quants = random_bytes(3 * 64, 9);
  const std::vector<float> scales{0.5f, 0.25f, 0.3f};
  const std::string_view bytes = as_text(std::as_bytes(std::span(scales)));
  const TwoTensors rows(entry("I8", {3, 64}), quants, entry("F32", {3, 1}), bytes);
  const TwoTensors one(entry("I8", {3, 64}), quants, entry("F32", {1}), bytes.substr(0, 4));
  ASSERT_TRUE(check_int8(rows.tensor(), "v") && check_int8(one.tensor(), "v"));
  const auto turned = [](std::int64_t row) { return 2 - row; };
  const std::vector<float> values = scaled_floats(int8_rows(rows.tensor(), {0, 2}, turned));
  const std::vector<float> alike = scaled_floats(int8_rows(one.tensor(), {0, 2}, turned));
  const std::vector<float> halves = scaled_floats(int8_as_bf16(rows.tensor(), {1, 3}));
  for (std::size_t c = 0; c < 64; ++c) {
    const auto quant = [&](std::size_t row) {
      return static_cast<float>(static_cast<signed char>(quants[row * 64 + c]));
    };
    EXPECT_EQ(values[c], half_to_float(float_to_half(0.3f)) * quant(2));
    EXPECT_EQ(values[64 + c], 0.25f * quant(1));
    EXPECT_EQ(alike[c], 0.5f * quant(2));
    EXPECT_EQ(halves[64 + c], bfloat16_to_float(float_to_bfloat16(0.3f * quant(2))));
  }
  const TwoTensors wrong(entry("I8", {3, 64}), quants, entry("F32", {2, 1}), bytes.substr(0, 8));
  EXPECT_EQ(check_int8(wrong.tensor(), "v").error().message, "v: scales of the shape [2, 1], expected [3, 1]");
}

TEST(ScaledTensors, WhatDoesNotFitIsNamed) {
  const std::string bytes(96, '\1');
  const auto fp8 = [&](const char* type, const std::vector<std::int64_t>& shape) {
    const TwoTensors two(entry("F8_E4M3", {3, 4}), std::string_view(bytes).substr(0, 12), entry(type, shape),
                         std::string_view(bytes).substr(0, static_cast<std::size_t>(shape[0] * 4)));
    return check_fp8(two.tensor(), "v").error().message;
  };
  EXPECT_EQ(fp8("F32", {2, 1}), "v: scales of the shape [2, 1], expected [1, 1]");
  EXPECT_THAT(fp8("I32", {1, 1}), HasSubstr("the scales of v are stored as I32, expected F32, F16 or BF16"));
  const TwoTensors short_blocks(entry("U8", {1, 3, 8}), std::string_view(bytes).substr(0, 24), entry("U8", {1, 3}),
                                std::string_view(bytes).substr(0, 3));
  EXPECT_THAT(check_mxfp4(short_blocks.tensor(), "v").error().message, HasSubstr("has the shape [1, 3, 8]"));
  const TwoTensors other_scales(entry("U8", {1, 3, 16}), std::string_view(bytes).substr(0, 48), entry("U8", {3, 1}),
                                std::string_view(bytes).substr(0, 3));
  EXPECT_EQ(check_mxfp4(other_scales.tensor(), "v").error().message, "v: scales of the shape [3, 1], expected [1, 3]");
}

}  // namespace
}  // namespace butterfly
