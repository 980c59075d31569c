// Models in each quantised type: written, opened, converted, cut into parts, refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/model/format/model_files_test.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

/// Rows of one and of two blocks of 256.
ModelConfig wide_config() {
  ModelConfig config = small_config();
  config.layers = 1;
  config.model_dim = 256;
  config.head_dim = 64;
  config.rope.dim = 64;
  config.ff_dim = 512;
  return config;
}

std::vector<float> floats_of(const WeightView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.rows * view.cols));
  const auto cols = static_cast<std::size_t>(view.cols);
  const std::uint64_t row = *row_bytes(view.type, cols);
  const std::uint64_t step = view.stride == 0 ? row : view.stride;
  for (std::size_t r = 0; r < static_cast<std::size_t>(view.rows); ++r) {
    decode_row(view.type, view.bytes.subspan(r * step, row), std::span(values).subspan(r * cols, cols));
  }
  return values;
}

class QuantisedTypes : public ::testing::TestWithParam<DType> {};

TEST_P(QuantisedTypes, AFileOfTheTypeOpensWithTheBytesThatWereWritten) {
  const TempDir dir;
  const Checkpoint checkpoint = *random_checkpoint(wide_config(), {.seed = 3, .type = GetParam()});
  const auto report = convert(checkpoint, dir / "model.gguf", {.type = GetParam()});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->stored_as_f16.empty());
  const auto opened = open_checkpoint(dir / "model.gguf");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->config.weight_type, GetParam());
  expect_same_weights(*checkpoint.weights, *opened->weights);
}

TEST_P(QuantisedTypes, PartsWithinABlockOf256HaveTheValuesOfTheWhole) {
  const Checkpoint checkpoint = *random_checkpoint(wide_config(), {.seed = 3, .type = GetParam()});
  const std::string name = "blk.0.ffn_down.weight";  // 256 x 512
  const auto whole = checkpoint.weights->find(name);
  ASSERT_TRUE(whole);
  const std::vector<float> all = floats_of(*whole);
  ThreadTeam team(1);
  for (const IndexRange cols : {IndexRange{0, 64}, {32, 288}, {192, 224}, {256, 512}, {480, 512}}) {
    const auto part = checkpoint.weights->find_part(name, {256, 512, {7, 40}, cols});
    ASSERT_TRUE(part) << part.error().message;
    const std::vector<float> values = floats_of(*part);
    const auto packed = PackedMatrix::pack(part->matrix(), team);
    ASSERT_TRUE(packed) << packed.error().message;
    std::vector<float> unpacked(static_cast<std::size_t>(cols.size()));
    for (std::int64_t r = 0; r < 33; ++r) {
      const float* expected = all.data() + (r + 7) * 512 + cols.begin;
      const auto bytes = unpacked.size() * sizeof(float);
      EXPECT_EQ(std::memcmp(values.data() + r * cols.size(), expected, bytes), 0) << cols.begin << " row " << r;
      packed->unpack_row(r, unpacked);
      EXPECT_EQ(std::memcmp(unpacked.data(), expected, bytes), 0) << cols.begin << " packed row " << r;
    }
  }
  EXPECT_THAT(checkpoint.weights->find_part(name, {256, 512, {0, 256}, {0, 40}}).error().message,
              HasSubstr("has blocks of 32 columns, 0 to 40 were asked for"));
}

TEST_P(QuantisedTypes, RandomValuesHaveAboutTheDeviationThatModelsHave) {
  const Checkpoint checkpoint = *random_checkpoint(wide_config(), {.seed = 3, .type = GetParam()});
  const std::vector<float> values = floats_of(*checkpoint.weights->find("blk.0.ffn_up.weight"));
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double deviation = std::sqrt(squares / static_cast<double>(values.size())) * std::sqrt(256.0);
  EXPECT_GT(deviation, 0.6);
  EXPECT_LT(deviation, 1.7);
  EXPECT_LT(std::fabs(sum / static_cast<double>(values.size())) * 16, 0.3);
}

INSTANTIATE_TEST_SUITE_P(Types, QuantisedTypes,
                         testing::Values(DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                         DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                         DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kInt8),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

TEST(QuantisedTypeErrors, OfConversionFallWithTheBits) {
  const TempDir dir;
  const Checkpoint checkpoint = *random_checkpoint(wide_config(), {.seed = 3, .type = DType::kF32});
  const auto error_of = [&](DType type) {
    EXPECT_TRUE(convert(checkpoint, dir / "model.gguf", {.type = type}));
    const auto opened = open_checkpoint(dir / "model.gguf");
    EXPECT_TRUE(opened);
    const std::vector<float> expected = floats_of(*checkpoint.weights->find("blk.0.ffn_up.weight"));
    const std::vector<float> actual = floats_of(*opened->weights->find("blk.0.ffn_up.weight"));
    double difference = 0, all = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(static_cast<double>(expected[i]) - static_cast<double>(actual[i]), 2);
      all += std::pow(static_cast<double>(expected[i]), 2);
    }
    return std::sqrt(difference / all);
  };
  const double q4_0 = error_of(DType::kQ4_0), q4_1 = error_of(DType::kQ4_1), q4_k = error_of(DType::kQ4_K);
  const double q5_0 = error_of(DType::kQ5_0), q5_1 = error_of(DType::kQ5_1), q5_k = error_of(DType::kQ5_K);
  const double q6_k = error_of(DType::kQ6_K), q8_0 = error_of(DType::kQ8_0);
  EXPECT_LT(q4_0, 0.1);
  EXPECT_LT(std::max(q4_1, q4_k), q4_0);
  EXPECT_LT(std::max({q5_0, q5_1, q5_k}), 0.6 * q4_0);
  EXPECT_LT(q6_k, 0.6 * q5_0);
  EXPECT_LT(q8_0, 0.5 * q6_k);
  const double iq4_nl = error_of(DType::kIQ4_NL), iq4_xs = error_of(DType::kIQ4_XS);
  const double q3_k = error_of(DType::kQ3_K), q2_k = error_of(DType::kQ2_K);
  EXPECT_LT(std::max(iq4_nl, iq4_xs), q4_0);
  EXPECT_LT(q3_k, 0.2);
  EXPECT_GT(q3_k, 1.5 * q4_k);
  EXPECT_LT(q2_k, 0.35);
  EXPECT_GT(q2_k, 1.5 * q3_k);
  EXPECT_LT(error_of(DType::kMXFP4), 0.15);
}

TEST(QuantisedTypeErrors, ATypeOfAFileThatCannotBeComputedWithIsNamed) {
  // IQ3_S has blocks as large as Q3_K's: the file is well-formed.
  const TempDir dir;
  ASSERT_TRUE(convert(*random_checkpoint(wide_config(), {.seed = 3, .type = DType::kQ3_K}), dir / "model.gguf", {}));
  std::string bytes = read_file(dir / "model.gguf");
  const std::string name = "blk.0.attn_q.weight";
  const std::uint32_t iq3_s = 21;
  std::memcpy(bytes.data() + bytes.find(name) + name.size() + 4 + 2 * 8, &iq3_s, 4);
  write_file(dir / "model.gguf", bytes);
  const auto opened = open_checkpoint(dir / "model.gguf");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(opened.error().message,
              HasSubstr("blk.0.attn_q.weight is stored as IQ3_S, supported are F32, F16, Q4_0"));
}

}  // namespace
}  // namespace butterfly
