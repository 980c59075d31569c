#include "butterfly/model/core/finite_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "butterfly/model/core/random_weights.h"
#include "butterfly/tensor/half.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kRows = 37, kCols = 64;

/// What check_finite() says of a matrix with `special` in the place of one element's, or one block's, first bytes.
std::string complaint(DType type, std::int64_t row, std::int64_t column, float special, std::uint64_t padding = 0) {
  const std::uint64_t size = *row_bytes(type, kCols), stride = size + padding;
  std::vector<std::byte> bytes(static_cast<std::size_t>(stride * kRows), std::byte{0xFF});  // NaN between the rows
  std::vector<float> values(kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::size_t c = 0; c < kCols; ++c) values[c] = static_cast<float>(c) - 20.5f * static_cast<float>(r % 3);
    encode_row(type, values,
               MutableByteSpan(bytes).subspan(static_cast<std::size_t>(stride) * static_cast<std::size_t>(r),
                                              static_cast<std::size_t>(size)));
  }
  const std::uint16_t half = type == DType::kBF16 ? float_to_bfloat16(special) : float_to_half(special);
  std::byte* at = bytes.data() + static_cast<std::size_t>(stride) * static_cast<std::size_t>(row) +
                  column / block_elements(type) * block_bytes(type);
  if (type == DType::kF32) std::memcpy(at, &special, 4);
  if (type != DType::kF32) std::memcpy(at, &half, 2);
  ThreadTeam team(3);
  const auto source = random_checkpoint(*named_config("tinytransformer-tiny"), {}).value();
  const ByteSpan used = ByteSpan(bytes).first(static_cast<std::size_t>(stride * (kRows - 1) + size));
  const Status status =
      check_finite(*source.weights, "a.weight", MatrixView{type, kRows, kCols, used, padding == 0 ? 0 : stride}, team);
  return status ? "" : status.error().message;
}

TEST(FiniteWeights, NamesTheFirstElementThatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    for (const std::uint64_t padding : {std::uint64_t{0}, std::uint64_t{6}}) {
      EXPECT_EQ(complaint(type, 0, 0, 1.0f, padding), "") << to_string(type);
      EXPECT_THAT(complaint(type, 36, 32, nan, padding), HasSubstr("a.weight has nan in row 36, column 32"))
          << to_string(type);
      EXPECT_THAT(complaint(type, 5, 0, -infinity, padding), HasSubstr("has -inf in row 5, column 0"))
          << to_string(type);
    }
  }
  EXPECT_THAT(complaint(DType::kF16, 12, 63, infinity), HasSubstr("has inf in row 12, column 63"));
  EXPECT_EQ(complaint(DType::kF32, 12, 63, std::numeric_limits<float>::max()), "");
}

TEST(FiniteWeights, LooksAtVectorsToo) {
  const auto source = random_checkpoint(*named_config("tinytransformer-tiny"), {}).value();
  std::vector<float> values(10, 1.0f);
  EXPECT_TRUE(check_finite(*source.weights, "norm", values));
  values[7] = std::nanf("");
  EXPECT_THAT(check_finite(*source.weights, "norm", values).error().message,
              HasSubstr("norm has nan in row 0, column 7"));
}

}  // namespace
}  // namespace butterfly
