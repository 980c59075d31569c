#include "butterfly/kernel/training/gradient_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "butterfly/kernel/training/gradient_dispatch.h"

namespace butterfly {
namespace {

using Bytes = std::vector<unsigned char>;
using Floats = std::vector<float>;

struct Kind {
  const char* name;
  decltype(GradientRows::encode_bf16) GradientRows::*encode;
  decltype(GradientRows::decode_bf16) GradientRows::*decode;
  std::size_t bytes(std::size_t n) const {
    constexpr auto kBlock = static_cast<std::size_t>(kGradientBlock);
    return std::string_view(name) == "bf16" ? 2 * n : n + 2 * ((n + kBlock - 1) / kBlock);
  }
};
const std::vector<Kind> kKinds{{"bf16", &GradientRows::encode_bf16, &GradientRows::decode_bf16},
                               {"int8", &GradientRows::encode_int8, &GradientRows::decode_int8}};

/// Magnitudes from 1e-12 to 1e3, as gradients of one model have; zeros among them.
Floats random_gradients(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-12.0F, 3.0F);
  Floats values(n);
  for (float& value : values) value = random() % 9 == 0 ? 0.0F : normal(random) * std::pow(10.0F, exponent(random));
  return values;
}

struct Encoded {
  Bytes bytes;
  Floats residual;
  Floats decoded;
};

Encoded encode(const GradientRows& rows, const Kind& kind, const Floats& g, const Floats& e) {
  Encoded result{.bytes = Bytes(kind.bytes(g.size())), .residual = e, .decoded = Floats(g.size())};
  const auto n = static_cast<long>(g.size());
  (rows.*kind.encode)(g.data(), result.residual.data(), n, result.bytes.data());
  (rows.*kind.decode)(result.bytes.data(), n, result.decoded.data());
  return result;
}

TEST(GradientRows, WhatIsSentAndWhatIsLeftAreExactlyTheSum) {
  const GradientRows& rows = gradient_rows_for(Isa::kReference);
  for (const Kind& kind : kKinds) {
    for (unsigned seed = 0; seed < 50; ++seed) {
      const Floats g = random_gradients(1000, seed);
      const Floats e = random_gradients(1000, seed + 1000);
      const Encoded made = encode(rows, kind, g, e);
      for (std::size_t i = 0; i < g.size(); ++i) {
        const float x = g[i] + e[i];
        ASSERT_EQ(static_cast<double>(made.decoded[i]) + static_cast<double>(made.residual[i]), x)
            << kind.name << " element " << i << " of seed " << seed;
      }
    }
  }
}

TEST(GradientRows, TheErrorIsAtMostHalfAStep) {
  const GradientRows& rows = gradient_rows_for(Isa::kReference);
  const Floats g = random_gradients(kGradientBlock * 100 + 7, 5);
  const Floats none(g.size(), 0.0F);
  const Encoded bf16 = encode(rows, kKinds[0], g, none);
  for (std::size_t i = 0; i < g.size(); ++i) ASSERT_LE(std::abs(bf16.residual[i]), std::abs(g[i]) / 256) << i;
  const Encoded int8 = encode(rows, kKinds[1], g, none);
  for (std::size_t begin = 0; begin < g.size(); begin += kGradientBlock) {
    const std::size_t end = std::min(g.size(), begin + kGradientBlock);
    float most = 0.0F;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::abs(g[i]));
    // The scale is rounded up to 8 bits.
    const float half_step = most / 127 * (1 + 1.0F / 128) / 2 * 1.001F;
    for (std::size_t i = begin; i < end; ++i) ASSERT_LE(std::abs(int8.residual[i]), half_step) << i;
  }
}

TEST(GradientRows, AStepThatIsNotFiniteIsSentAndNotResidual) {
  for (const Kind& kind : kKinds) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                            std::bit_cast<float>(0x7fffffffU), std::bit_cast<float>(0xff800001U)}) {
      Floats g(40, 1.0F);
      g[3] = bad;
      const Encoded made = encode(gradient_rows_for(Isa::kReference), kind, g, Floats(40, 0.0F));
      EXPECT_FALSE(std::isfinite(made.decoded[3])) << kind.name;
      for (const float residual : made.residual) EXPECT_TRUE(std::isfinite(residual)) << kind.name;
      EXPECT_NEAR(made.decoded[39], 1.0F, 0.01F) << kind.name << ": another block";
    }
  }
}

TEST(GradientRows, ValuesTooSmallForAScaleAreResidual) {
  const Floats g(32, 1e-33F);
  const Encoded made = encode(gradient_rows_for(Isa::kReference), kKinds[1], g, Floats(32, 0.0F));
  EXPECT_EQ(made.decoded, Floats(32, 0.0F));
  EXPECT_EQ(made.residual, g);
}

TEST(ParityGradientRows, EveryInstructionSetHasTheReferencesBits) {
  for (const Isa isa : supported_isas()) {
    for (const Kind& kind : kKinds) {
      for (const std::size_t n : {1UL, 15UL, 31UL, 32UL, 33UL, 64UL, 95UL, 1000UL, 4096UL}) {
        Floats g = random_gradients(n, static_cast<unsigned>(n));
        if (n > 40) g[40] = std::numeric_limits<float>::infinity();
        const Floats e = random_gradients(n, 77);
        const Encoded expected = encode(gradient_rows_for(Isa::kReference), kind, g, e);
        const Encoded made = encode(gradient_rows_for(isa), kind, g, e);
        const std::string where = fmt::format("{} on {} with {} elements", kind.name, to_string(isa), n);
        ASSERT_EQ(made.bytes, expected.bytes) << where;
        ASSERT_EQ(std::memcmp(made.residual.data(), expected.residual.data(), n * sizeof(float)), 0) << where;
        ASSERT_EQ(std::memcmp(made.decoded.data(), expected.decoded.data(), n * sizeof(float)), 0) << where;
      }
    }
  }
}

}  // namespace
}  // namespace butterfly
