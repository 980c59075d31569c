#include "butterfly/train/gradients/gradient_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace butterfly {
namespace {

using ::testing::HasSubstr;

constexpr std::array kAllMethods{GradientCompression::kFp16, GradientCompression::kBf16, GradientCompression::kInt8,
                                 GradientCompression::kLz4, GradientCompression::kZstd};

std::string name(GradientCompression method) {
  return std::string(gradient_compression_name(method));
}

/// Whole multiples of 2^-20 below 1, large and small ones side by side: what a codec leaves of them adds to the next
/// without rounding.
std::vector<float> grid_gradients(std::size_t n, std::mt19937& random) {
  std::vector<float> values(n);
  for (float& value : values) {
    const int exponent = -20 + static_cast<int>(random() % 7);
    value = std::ldexp(static_cast<float>(static_cast<int>(random() % 4001) - 2000), exponent);
  }
  return values;
}

struct Sent {
  std::vector<float> values;
  std::size_t bytes = 0;
};

Sent send(GradientCodec& codec, const std::vector<float>& g, std::vector<float>& e) {
  std::vector<std::byte> bytes(codec.bytes_max(g.size()));
  Sent sent{.values = std::vector<float>(g.size()), .bytes = codec.encode(g, e, bytes)};
  bytes.resize(sent.bytes);
  const Status decoded = codec.decode(bytes, sent.values);
  EXPECT_TRUE(decoded) << decoded.error().message;
  return sent;
}

TEST(GradientCodec, WhatWasSentAndWhatIsResidualIsTheSumOfAllGradients) {
  for (const GradientCompression method : kAllMethods) {
    const auto codec = make_gradient_codec(method, Isa::kReference);
    std::mt19937 random(7);
    constexpr std::size_t kElements = 500;
    std::vector<float> e(kElements, 0.0F);
    std::vector<double> sent(kElements, 0.0), all(kElements, 0.0);
    for (int step = 0; step < 300; ++step) {
      const std::vector<float> g = grid_gradients(kElements, random);
      const Sent now = send(*codec, g, e);
      for (std::size_t i = 0; i < kElements; ++i) {
        sent[i] += now.values[i];
        all[i] += g[i];
        ASSERT_EQ(sent[i] + e[i], all[i]) << name(method) << " element " << i << " after step " << step;
      }
    }
  }
}

TEST(GradientCodec, TinyGradientsArriveInTheEnd) {
  // Each is a thousandth of what int8 resolves beside the large one, and below the least half.
  for (const GradientCompression method : {GradientCompression::kInt8, GradientCompression::kFp16}) {
    const auto codec = make_gradient_codec(method, Isa::kReference);
    std::vector<float> g(32, 1e-8F), e(32, 0.0F);
    g[0] = method == GradientCompression::kInt8 ? 1e-3F : 0.0F;
    double arrived = 0.0;
    for (int step = 0; step < 10'000; ++step) arrived += send(*codec, g, e).values[5];
    EXPECT_NEAR(arrived, 1e-4, 1e-5) << name(method);
  }
}

TEST(GradientCodec, SizesAreWhatTheySay) {
  for (const GradientCompression method : kAllMethods) {
    const auto codec = make_gradient_codec(method, Isa::kReference);
    for (const std::size_t n : {0UL, 1UL, 31UL, 32UL, 33UL, 1000UL, 3000UL}) {
      std::mt19937 random(3);
      const std::vector<float> g = grid_gradients(n, random);
      std::vector<float> e(n, 0.0F);
      const Sent sent = send(*codec, g, e);
      EXPECT_LE(sent.bytes, codec->bytes_max(n));
      EXPECT_EQ(codec->fixed_bytes(n).value_or(sent.bytes), sent.bytes) << name(method) << " " << n;
    }
  }
  EXPECT_EQ(make_gradient_codec(GradientCompression::kInt8, Isa::kReference)->bytes_max(64), 68U);
}

TEST(GradientCodec, LosslessOnesKeepEveryBit) {
  for (const GradientCompression method : {GradientCompression::kLz4, GradientCompression::kZstd}) {
    const auto codec = make_gradient_codec(method, Isa::kReference);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0F, 1e-3F);
    std::vector<float> g(10'000), none;
    for (float& value : g) value = normal(random);
    const Sent sent = send(*codec, g, none);
    EXPECT_EQ(sent.values, g);
    EXPECT_LT(sent.bytes, g.size() * sizeof(float)) << name(method);
  }
}

TEST(GradientCodec, HalvesClampAndOweTheRest) {
  const auto codec = make_gradient_codec(GradientCompression::kFp16, Isa::kReference);
  const std::vector<float> g{70000.0F, -70000.0F, std::numeric_limits<float>::infinity(), 1.0F};
  std::vector<float> e(4, 0.0F);
  const Sent sent = send(*codec, g, e);
  EXPECT_THAT(sent.values, ::testing::ElementsAre(65504.0F, -65504.0F, g[2], 1.0F));
  EXPECT_THAT(e, ::testing::ElementsAre(70000.0F - 65504.0F, 65504.0F - 70000.0F, 0.0F, 0.0F));
}

TEST(GradientCodec, BytesThatNoEncoderWritesAreRefused) {
  for (const GradientCompression method : kAllMethods) {
    const auto codec = make_gradient_codec(method, Isa::kReference);
    std::vector<float> values(1000);
    const std::vector<std::byte> bytes(codec->bytes_max(1000) - 1, std::byte{9});
    const Status refused = codec->decode(bytes, values);
    ASSERT_FALSE(refused) << name(method);
    EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
  }
}

}  // namespace
}  // namespace butterfly
