#include "butterfly/kernel/rates/matmul_rates.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace butterfly {
namespace {

constexpr std::uint64_t kFewBytes = 64 * 1024;
constexpr double kNobodyIsSoFast = 3e4;  // what no time at all would be read as

TEST(MatmulRates, EveryTypeIsMeasuredOnEveryInstructionSet) {
  for (const Isa isa : supported_isas()) {
    const auto rates =
        measure_matmuls(
            {.isa = isa, .threads = 2, .weight_bytes = kFewBytes, .prefill_weight_bytes = kFewBytes, .prefill_rows = 4})
            .value();
    ASSERT_EQ(rates.size(), 9u);
    for (const MatmulRate& rate : rates) {
      EXPECT_GT(rate.decode_gb_per_s, 0) << rate.type;
      EXPECT_GT(rate.prefill_gflops, 0) << rate.type;
      EXPECT_LT(rate.decode_gb_per_s, kNobodyIsSoFast) << rate.type;
      EXPECT_EQ(rate.cached_gb_per_s > 0, !rate.type.starts_with(kAttention)) << rate.type;
      EXPECT_LT(rate.prefill_gflops, kNobodyIsSoFast) << rate.type;
    }
  }
  EXPECT_FALSE(measure_matmuls({.threads = 0}));
}

// Fails when a slow machine packs all of what a fast one does: no machine has so much memory.
TEST(MatmulRates, WhereTimeIsShortFewerWeightsAreEnough) {
  constexpr std::uint64_t kTooMany = std::uint64_t{1} << 46;
  const auto rates = measure_matmuls({.isa = Isa::kReference,
                                      .weight_bytes = kTooMany,
                                      .prefill_weight_bytes = kTooMany,
                                      .prefill_rows = 1,
                                      .seconds_max = 1e-3});
  ASSERT_TRUE(rates) << rates.error().message;
  for (const MatmulRate& rate : *rates) {
    EXPECT_GT(rate.decode_gb_per_s, 0) << rate.type;
    EXPECT_GT(rate.prefill_gflops, 0) << rate.type;
  }
}

TEST(MatmulRates, TextComesBackAndDamagedTextIsRefused) {
  const std::vector<MatmulRate> rates{{"f32", 10.5, 80, 21}, {"f16", 11, 81, 22},       {"bf16", 12, 82, 23},
                                      {"q8_0", 13, 83, 24},  {"q4_0", 14, 84, 25},      {"int8", 14, 84, 26},
                                      {"attention", 15, 85}, {"attention_f32", 16, 86}, {"attention_q8_0", 17, 87}};
  const std::string text = serialize(rates);
  EXPECT_EQ(parse_matmuls(text), rates);
  for (const auto& [from, to] :
       std::initializer_list<std::pair<std::string, std::string>>{{"10.5", "nan"},
                                                                  {"10.5", "-1"},
                                                                  {"10.5", "inf"},
                                                                  {"q4_0", "q5_0"},
                                                                  {"attention_q8_0 17 87 0", ""},
                                                                  {"matmuls 5\n", "matmuls 4\n"}}) {
    std::string broken = text;
    broken.replace(broken.find(from), from.size(), to);
    EXPECT_FALSE(parse_matmuls(broken)) << to;
  }
}

class MatmulCache : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "butterfly-matmuls-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    home_ = pattern;
    setenv("XDG_CACHE_HOME", home_.c_str(), 1);
    unsetenv("BUTTERFLY_CACHE");
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    std::filesystem::remove_all(home_);
  }
  std::filesystem::path home_;
};

// Fails when a worker measures at each start.
TEST_F(MatmulCache, WhatWasMeasuredIsRememberedForTheSameMachineAndThreads) {
  const auto measured = remembered_matmuls(supported_isas().back(), 1, "some CPU");
  ASSERT_EQ(measured.size(), 9u);
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator(home_ / "butterfly")) {
    if (entry.path().filename().string().starts_with("matmuls-")) file = entry.path();
  }
  std::vector<MatmulRate> changed = measured;
  changed[0].prefill_gflops = 12345;
  std::ofstream(file) << serialize(changed);
  changed = *parse_matmuls(serialize(changed));  // the text has six digits
  EXPECT_EQ(remembered_matmuls(supported_isas().back(), 1, "some CPU"), changed);
  EXPECT_NE(remembered_matmuls(supported_isas().back(), 1, "another CPU"), changed);
}

TEST_F(MatmulCache, WithoutACacheNothingIsMeasured) {
  setenv("BUTTERFLY_CACHE", "off", 1);
  EXPECT_TRUE(remembered_matmuls(supported_isas().back(), 1, "some CPU").empty());
  unsetenv("BUTTERFLY_CACHE");
}

}  // namespace
}  // namespace butterfly
