// Which set multiplies is measured, remembered, and never seen in a result.
#include "butterfly/kernel/rates/matmul_choice.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "butterfly/kernel/inference/linear.h"
#include "butterfly/kernel/rates/owned_activations.h"

namespace butterfly {
namespace {

std::vector<float> product(const Kernels& kernels, DType type, std::int64_t rows) {
  constexpr std::int64_t kColumns = 512, kRowsOut = 40;
  ThreadTeam team(1);
  std::vector<std::byte> stored(*row_bytes(type, kColumns) * kRowsOut);
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::byte>(0x20 + i % 13);
  const PackedMatrix weights =
      PackedMatrix::pack({.type = type, .rows = kRowsOut, .cols = kColumns, .bytes = ByteSpan(stored)}, team).value();
  const OwnedActivations x(kernels, rows, kColumns);
  std::vector<float> y(static_cast<std::size_t>(rows * kRowsOut));
  const LinearJob job{.weights = &weights, .x = &x.view, .slices = SliceBorders::single(kColumns), .y = y.data()};
  run_linear(kernels, team, std::span(&job, 1));
  return y;
}

/// Choices of this process, undone.
struct Choosing {
  explicit Choosing(Isa isa) : isa(isa) {}
  ~Choosing() {
    for (const DType type : kAllDTypes) {
      for (const RowClass rows : {RowClass::kOne, RowClass::kFew, RowClass::kMany}) {
        if (type != DType::kI32) choose_matmul(isa, packed_type(type), rows, isa_before);
      }
    }
  }
  const Isa isa;
  const Isa isa_before = matmul_isa(isa, PackedType::kF32, RowClass::kOne);
};

TEST(MatmulChoice, RowsBelongToAClass) {
  EXPECT_EQ(row_class(1), RowClass::kOne);
  EXPECT_EQ(row_class(2), RowClass::kFew);
  EXPECT_EQ(row_class(15), RowClass::kFew);
  EXPECT_EQ(row_class(16), RowClass::kMany);
}

// Fails when a class of rows or a type has the choice of another one.
TEST(MatmulChoice, HoldsForItsTypeAndRowsAloneAndNoBitShowsIt) {
  const Isa isa = supported_isas().back();
  const Choosing undo(isa);
  const std::vector<float> before = product(kernels_for(isa), DType::kQ8_0, 17);
  choose_matmul(isa, PackedType::kQ8_0, RowClass::kMany, Isa::kReference);
  EXPECT_EQ(matmul_isa(isa, PackedType::kQ8_0, RowClass::kMany), Isa::kReference);
  EXPECT_EQ(matmul_isa(isa, PackedType::kQ8_0, RowClass::kFew), isa);
  EXPECT_EQ(matmul_isa(isa, PackedType::kQ8_0, RowClass::kOne), isa);
  EXPECT_EQ(matmul_isa(isa, PackedType::kQ4_0, RowClass::kMany), isa);
  for (const Isa other : supported_isas()) {
    EXPECT_EQ(matmul_isa(other, PackedType::kQ8_0, RowClass::kMany), other == isa ? Isa::kReference : other);
  }
  const std::vector<float> after = product(kernels_for(isa), DType::kQ8_0, 17);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
}

TEST(MatmulChoice, IsOfASetThatIsFasterThanTheOneThatWasAskedFor) {
  for (const Isa isa : supported_isas()) {
    for (const MatmulChoice& choice : measure_choices(isa).matmuls) {
      EXPECT_LT(choice.isa, isa);
      EXPECT_NE(choice.isa, Isa::kReference);
      EXPECT_GE(choice.gain, 1.05);
    }
  }
}

// Fails when one row computes with weights that have not come, or reads others.
TEST(MatmulChoice, HowWeightsAreAskedForIsNotSeenInABit) {
  const Prefetch before = chosen_prefetch();
  for (const Isa isa : supported_isas()) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kQ4_0, DType::kQ8_0, DType::kQ6_K}) {
      choose_prefetch(Prefetch::kTwoSteps);
      const std::vector<float> two_steps = product(unchecked_kernels(isa), type, 1);
      choose_prefetch(Prefetch::kOneStep);
      EXPECT_EQ(product(unchecked_kernels(isa), type, 1), two_steps) << to_string(isa) << " " << to_string(type);
    }
  }
  choose_prefetch(before);
}

TEST(MatmulChoice, TextOfTheCacheIsReadBackOrRefusedWhole) {
  const MachineChoices choices{
      .matmuls = {{.type = DType::kQ5_K, .rows = RowClass::kMany, .isa = Isa::kReference, .gain = 1.25},
                  {.type = DType::kF32, .rows = RowClass::kFew, .isa = supported_isas().back(), .gain = 2.0}},
      .prefetch = {.prefetch = Prefetch::kOneStep, .gain = 1.5}};
  const std::string text = serialize(choices);
  EXPECT_EQ(parse_choices(text), choices);
  EXPECT_EQ(parse_choices(serialize({})), MachineChoices{});
  for (const auto& [from, to] : std::initializer_list<std::pair<std::string, std::string>>{{"choices 3", "choices 9"},
                                                                                           {"\n2\n", "\n3\n"},
                                                                                           {"q5_k", "q5_q"},
                                                                                           {"many", "some"},
                                                                                           {"one-step", "one-stop"},
                                                                                           {"1.5", "inf"},
                                                                                           {"reference", "sse9"},
                                                                                           {"1.25", "x"}}) {
    std::string broken = text;
    broken.replace(broken.find(from), from.size(), to);
    EXPECT_FALSE(parse_choices(broken)) << to;
  }
}

// Fails when the search runs at each start, or where it is not wanted.
TEST(MatmulChoice, IsRememberedOnThisHostAndNotSoughtWhereSwitchedOff) {
  std::string home = (std::filesystem::temp_directory_path() / "butterfly-choices-XXXXXX").string();
  ASSERT_NE(mkdtemp(home.data()), nullptr);
  setenv("XDG_CACHE_HOME", home.c_str(), 1);
  unsetenv("BUTTERFLY_CACHE");
  const Isa isa = supported_isas().back();
  setenv("BUTTERFLY_TUNE", "off", 1);
  EXPECT_EQ(remembered_choices(isa), MachineChoices());
  EXPECT_TRUE(std::filesystem::is_empty(home));
  unsetenv("BUTTERFLY_TUNE");
  remembered_choices(isa);
  std::filesystem::path file;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(home) / "butterfly")) {
    if (entry.path().filename().string().starts_with("choices-")) file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  const MachineChoices planted{
      .matmuls = {{.type = DType::kBF16, .rows = RowClass::kMany, .isa = Isa::kReference, .gain = 7}},
      .prefetch = {.prefetch = Prefetch::kOneStep, .gain = 3}};
  std::ofstream(file) << serialize(planted);
  EXPECT_EQ(remembered_choices(isa), planted);
  unsetenv("XDG_CACHE_HOME");
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace butterfly
