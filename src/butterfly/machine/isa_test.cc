#include "butterfly/machine/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace butterfly {
namespace {

/// BUTTERFLY_ISA for the length of a scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(const char* value) {
    if (const char* old = std::getenv("BUTTERFLY_ISA")) before_ = old;
    value != nullptr ? setenv("BUTTERFLY_ISA", value, 1) : unsetenv("BUTTERFLY_ISA");
  }
  ~ForcedIsa() { before_ ? setenv("BUTTERFLY_ISA", before_->c_str(), 1) : unsetenv("BUTTERFLY_ISA"); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  std::optional<std::string> before_;
};

TEST(Isa, NamesComeBackAsTheSameValue) {
  for (Isa isa : kAllIsas) {
    const Result<Isa> parsed = parse_isa(to_string(isa));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(*parsed, isa);
  }
}

TEST(Isa, UnknownNameIsRefusedNamingTheKnown) {
  const Result<Isa> parsed = parse_isa("AVX2");
  ASSERT_FALSE(parsed.has_value());
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(parsed.error().message, "unknown instruction set 'AVX2', known are reference, avx2, avx512, amx");
}

TEST(Isa, SupportedStartsWithReferenceAndAscends) {
  const auto& isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kReference);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(Isa, AgreesWithTheKernelsListOfFlags) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && line.rfind("flags", 0) != 0) {
  }
  if (line.rfind("flags", 0) != 0) GTEST_SKIP() << "/proc/cpuinfo has no line of flags on this machine";
  const auto has = [&](const std::string& flag) { return (line + " ").find(" " + flag + " ") != std::string::npos; };
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512 =
      avx2 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("avx512_vnni");
  const auto& isas = supported_isas();
  EXPECT_EQ(std::count(isas.begin(), isas.end(), Isa::kAvx2), avx2 ? 1 : 0);
  EXPECT_EQ(std::count(isas.begin(), isas.end(), Isa::kAvx512), avx512 ? 1 : 0);
  const bool amx = avx512 && has("amx_tile") && has("amx_int8") && has("amx_bf16");
  EXPECT_EQ(std::count(isas.begin(), isas.end(), Isa::kAmx), amx ? 1 : 0);
}

TEST(Isa, EverySupportedOneCanBeForced) {
  for (Isa isa : supported_isas()) {
    const ForcedIsa forced(std::string(to_string(isa)).c_str());
    const Result<Isa> chosen = choose_isa();
    ASSERT_TRUE(chosen.has_value());
    EXPECT_EQ(*chosen, isa);
  }
}

TEST(Isa, UnsetAndEmptyMeanTheFastest) {
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    const ForcedIsa forced(value);
    const Result<Isa> chosen = choose_isa();
    ASSERT_TRUE(chosen.has_value());
    EXPECT_EQ(*chosen, supported_isas().back());
  }
}

TEST(Isa, ForcingAnUnknownOneIsAnErrorNotAFallback) {
  const ForcedIsa forced("sse9");
  const Result<Isa> chosen = choose_isa();
  ASSERT_FALSE(chosen.has_value());
  EXPECT_EQ(chosen.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace butterfly
