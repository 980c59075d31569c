// Every instruction set of this machine equals `reference` by memcmp, whatever the rows, threads and slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/kernel/inference/gathered_rows_inl.h"
#include "butterfly/kernel/inference/linear.h"
#include "butterfly/kernel/inference/parity/parity_values_test.h"

namespace butterfly {
namespace {

struct Activations {
  Activations(const Kernels& kernels, std::int64_t rows, std::int64_t cols, std::vector<float> x, const RowForm& form)
      : values(std::move(x)) {
    quants.resize(static_cast<std::size_t>(rows * cols));
    scales.resize(static_cast<std::size_t>(rows * cols / 32 + 1));
    sums.resize(scales.size());
    view = {rows, cols, values.data(), quants.data(), scales.data(), sums.data()};
    if (cols % kQuantBlock == 0) {
      for (std::int64_t r = 0; r < rows; ++r) quantize_activation_row(kernels, view, r, form);
    }
  }
  std::vector<float> values;
  std::vector<std::int8_t> quants;
  std::vector<float> scales;
  std::vector<BlockSums> sums;
  ActivationRows view;
};

struct MatmulShape {
  std::int64_t rows, outputs, cols, head;
};

class ParityLinear : public testing::TestWithParam<DType> {};
class ParitySuperBlocks : public testing::TestWithParam<DType> {};  // as files store them

std::vector<float> matmul(Isa isa, int threads, const PackedMatrix& w, const MatmulShape& shape,
                          const SliceBorders& slices) {
  const Kernels& kernels = unchecked_kernels(isa);
  ThreadTeam team(threads);
  Activations x(kernels, shape.rows, shape.cols, random_floats(static_cast<std::size_t>(shape.rows * shape.cols), 7),
                row_form(w, slices, {0, slices.count()}));
  const auto bias = random_floats(static_cast<std::size_t>(shape.outputs), 8);
  const auto residual = random_floats(static_cast<std::size_t>(shape.rows * shape.outputs), 9);
  std::vector<float> y(residual.size());
  const LinearJob job{&w, &x.view, slices, bias.data(), residual.data(), y.data()};
  run_linear(kernels, team, std::span(&job, 1));
  return y;
}

TEST_P(ParityLinear, EqualsReferenceForEveryIsaRowCountThreadCountAndSlices) {
  const DType type = GetParam();
  const bool quantised = block_elements(type) > 1;
  const MatmulShape shapes[] = {
      {1, 16, 32, 8},    {1, 48, 256, 32},  {2, 17, 64, 8},    {3, 40, 96, 16}, {5, 33, 160, 8},  {7, 64, 768, 32},
      {13, 30, 256, 64}, {31, 18, 512, 32}, {6, 5, 172, 8},    {1, 100, 7, 1},  {4, 35, 2240, 1}, {1, 20, 2048, 64},
      {16, 33, 160, 8},  {40, 35, 2240, 1}, {290, 18, 96, 16}, {8, 19, 96, 8},  {11, 35, 160, 8}, {12, 20, 768, 32}};
  ThreadTeam packers(2);
  for (const MatmulShape& shape : shapes) {
    if (quantised && shape.cols % kQuantBlock != 0) continue;
    const StoredMatrix stored(type, shape.outputs, shape.cols, 3);
    const auto w = PackedMatrix::pack(stored.view, packers);
    ASSERT_TRUE(w);
    for (const SliceBorders& slices :
         {SliceBorders::single(shape.cols), SliceBorders::canonical(shape.cols, shape.head)}) {
      const auto expected = matmul(Isa::kReference, 1, *w, shape, slices);
      for (const Isa isa : supported_isas()) {
        for (const int threads : {1, 2, 3}) {
          EXPECT_TRUE(same_bits(matmul(isa, threads, *w, shape, slices), expected))
              << to_string(isa) << " " << threads << " threads " << shape.rows << "x" << shape.outputs << "x"
              << shape.cols;
        }
      }
    }
  }
}

// Fails where a tile of some number of rows, what is left over by larger ones included, adds its slices up otherwise.
TEST_P(ParityLinear, EqualsReferenceForEveryNumberOfRows) {
  MatmulShape shape{1, 18, 512, 16};
  ThreadTeam packers(2);
  const StoredMatrix stored(GetParam(), shape.outputs, shape.cols, 3);
  const auto w = PackedMatrix::pack(stored.view, packers);
  ASSERT_TRUE(w);
  const auto slices = SliceBorders::canonical(shape.cols, shape.head);
  for (; shape.rows <= 40; ++shape.rows) {
    const auto expected = matmul(Isa::kReference, 1, *w, shape, slices);
    for (const Isa isa : supported_isas()) {
      EXPECT_TRUE(same_bits(matmul(isa, 1, *w, shape, slices), expected)) << to_string(isa) << " " << shape.rows;
    }
  }
}

TEST_P(ParitySuperBlocks, EqualWhatTheyAreComputedAsForEveryIsaRowCountThreadCountAndSlices) {
  const DType type = GetParam();
  // Rows for one tile, for two and for more, of each instruction set; groups that are divided by slices.
  const MatmulShape shapes[] = {{1, 48, 256, 8},   {2, 17, 512, 32}, {3, 16, 256, 8},   {6, 33, 768, 32},
                                {7, 20, 256, 8},   {12, 18, 512, 8}, {13, 35, 2304, 1}, {16, 40, 768, 8},
                                {40, 33, 2304, 1}, {8, 19, 256, 8},  {9, 35, 512, 32},  {15, 17, 768, 8}};
  ThreadTeam packers(2);
  for (const MatmulShape& shape : shapes) {
    const auto bytes = random_matrix(type, shape.outputs, shape.cols, 3);
    const StoredMatrix computed(type, shape.outputs, shape.cols, 3);
    const auto w = PackedMatrix::pack({type, shape.outputs, shape.cols, bytes}, packers);
    const auto wide = PackedMatrix::pack(computed.view, packers);
    ASSERT_TRUE(w && wide);
    EXPECT_LT(w->bytes(), wide->bytes());
    for (const SliceBorders& slices :
         {SliceBorders::single(shape.cols), SliceBorders::canonical(shape.cols, shape.head)}) {
      const auto expected = matmul(Isa::kReference, 1, *wide, shape, slices);
      for (const Isa isa : supported_isas()) {
        for (const int threads : {1, 3}) {
          EXPECT_TRUE(same_bits(matmul(isa, threads, *w, shape, slices), expected))
              << to_string(isa) << " " << threads << " threads " << shape.rows << "x" << shape.outputs << "x"
              << shape.cols;
        }
      }
    }
  }
}

// Fails where rows are gathered beyond the memory for it, or those of a later part are taken for the first ones.
TEST(ParityOfWideMatrices, RowsGatheredInPartsEqualReference) {
  const MatmulShape shape{61, 16, 44032, 32};
  ASSERT_LT(rows_at_once(shape.cols, 1), shape.rows);
  ThreadTeam team(2);
  for (const DType type : {DType::kQ4_0, DType::kInt8, DType::kQ4_K}) {
    const auto bytes = random_matrix(type, shape.outputs, shape.cols, 3);
    const auto w = PackedMatrix::pack({type, shape.outputs, shape.cols, bytes}, team);
    ASSERT_TRUE(w);
    const auto slices = SliceBorders::canonical(shape.cols, shape.head);
    const auto expected = matmul(Isa::kReference, 1, *w, shape, slices);
    for (const Isa isa : supported_isas()) {
      EXPECT_TRUE(same_bits(matmul(isa, 1, *w, shape, slices), expected)) << to_string(type) << " " << to_string(isa);
    }
  }
}

TEST_P(ParityLinear, RowsDoNotDependOnTheirNeighbours) {
  const DType type = GetParam();
  const MatmulShape many{9, 48, 128, 32};
  ThreadTeam team(1);
  const StoredMatrix stored(type, many.outputs, many.cols, 4);
  const auto w = PackedMatrix::pack(stored.view, team);
  ASSERT_TRUE(w);
  const auto slices = SliceBorders::canonical(many.cols, 32);
  for (const Isa isa : supported_isas()) {
    const auto all = matmul(isa, 1, *w, many, slices);
    const auto one = matmul(isa, 1, *w, {1, many.outputs, many.cols, 32}, slices);
    // Row 0 has the same inputs in both: the generators are seeded alike and fill row by row.
    EXPECT_EQ(std::memcmp(all.data(), one.data(), one.size() * sizeof(float)), 0) << to_string(isa);
  }
}

TEST_P(ParityLinear, AnotherOrderOfOneSumIsSeen) {
  // The negative control: the same numbers in one chain instead of slices must differ somewhere.
  const MatmulShape shape{4, 64, 768, 32};
  ThreadTeam team(1);
  const StoredMatrix stored(GetParam(), shape.outputs, shape.cols, 5);
  const auto w = PackedMatrix::pack(stored.view, team);
  ASSERT_TRUE(w);
  EXPECT_FALSE(same_bits(matmul(Isa::kReference, 1, *w, shape, SliceBorders::single(shape.cols)),
                         matmul(Isa::kReference, 1, *w, shape, SliceBorders::canonical(shape.cols, 32))));
}

/// The matmul by members that hold `division` slices each: every one packs its columns alone and adds up its nodes of
/// the tree, on an instruction set of its own; the sums meet in fold().
std::vector<float> divided_matmul(const MatrixView& source, const MatmulShape& shape, const std::vector<int>& division,
                                  int threads, bool in_order = true) {
  const SliceBorders borders = SliceBorders::canonical(shape.cols, shape.head);
  const std::vector<Isa> isas = supported_isas();
  ThreadTeam team(threads);
  const auto values = random_floats(static_cast<std::size_t>(shape.rows * shape.cols), 7);
  std::vector<std::vector<float>> sums(kReductionSlices);
  int first = 0;
  for (std::size_t member = 0; member < division.size(); ++member) {
    const SliceRange slices{first, first + division[member]};
    first = slices.last;
    const IndexRange cols{borders.at(slices.first), borders.at(slices.last)};
    if (cols.size() == 0) continue;
    const Kernels& kernels = unchecked_kernels(isas[member % isas.size()]);
    const auto w = PackedMatrix::pack(source.part({0, shape.outputs}, cols), team);
    std::vector<float> own;
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      own.insert(own.end(), values.begin() + r * shape.cols + cols.begin, values.begin() + r * shape.cols + cols.end);
    }
    const Activations x(kernels, shape.rows, cols.size(), own, row_form(*w, borders, slices));
    std::vector<LinearJob> jobs;
    for (const SliceRange& node : subtrees(slices)) {
      const SliceBorders of_node = borders.node(node, static_cast<int>(cols.begin));
      if (of_node.cols() == 0) continue;
      auto& y = sums[static_cast<std::size_t>(node.first)];
      y.resize(static_cast<std::size_t>(shape.rows * shape.outputs));
      jobs.push_back({&*w, &x.view, of_node, nullptr, nullptr, y.data()});
    }
    run_linear(kernels, team, jobs);
  }
  if (!in_order) std::rotate(sums.begin(), sums.begin() + 1, sums.end());
  const auto bias = random_floats(static_cast<std::size_t>(shape.outputs), 8);
  auto y = random_floats(static_cast<std::size_t>(shape.rows * shape.outputs), 9);
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    float* rows[kReductionSlices];
    for (int slice = 0; slice < kReductionSlices; ++slice) {
      auto& sum = sums[static_cast<std::size_t>(slice)];
      rows[slice] = sum.empty() ? nullptr : sum.data() + r * shape.outputs;
    }
    const Kernels& kernels = unchecked_kernels(isas[static_cast<std::size_t>(r) % isas.size()]);
    kernels.fold(rows, shape.outputs, bias.data(), y.data() + r * shape.outputs, y.data() + r * shape.outputs);
  }
  return y;
}

const std::vector<std::vector<int>> kDivisions = {{32},         {16, 16},   {11, 10, 11},    {1, 2, 29},
                                                  {8, 8, 8, 8}, {3, 26, 3}, {7, 6, 5, 7, 7}, std::vector<int>(32, 1)};

TEST_P(ParityLinear, SlicesAddedUpByDifferentMembersGiveTheBitsOfOneMatmul) {
  const DType type = GetParam();
  const MatmulShape shapes[] = {{1, 48, 256, 32}, {3, 601, 352, 1}, {5, 40, 96, 8},
                                {2, 17, 512, 64}, {4, 33, 170, 1},  {7, 20, 2240, 1}};
  ThreadTeam team(1);
  for (const MatmulShape& shape : shapes) {
    if (block_elements(type) > 1 && shape.cols % kQuantBlock != 0) continue;
    const StoredMatrix stored(type, shape.outputs, shape.cols, 3);
    const MatrixView source = stored.view;
    const auto w = PackedMatrix::pack(source, team);
    const auto slices = SliceBorders::canonical(shape.cols, shape.head);
    const auto expected = matmul(Isa::kReference, 1, *w, shape, slices);
    for (const auto& division : kDivisions) {
      for (const int threads : {1, 3}) {
        EXPECT_TRUE(same_bits(divided_matmul(source, shape, division, threads), expected))
            << division.size() << " members, " << threads << " threads, " << shape.cols << " columns";
      }
    }
  }
}

/// The same byte for all quants of a random matrix; scales stay.
std::vector<std::byte> matrix_of(DType type, std::int64_t rows, std::int64_t cols, int quants) {
  std::vector<std::byte> bytes = random_matrix(type, rows, cols, 14);
  const auto step = static_cast<std::size_t>(block_bytes(type));
  for (std::size_t block = 0; block < bytes.size(); block += step) {
    std::vector<bool> kept(step);
    for (const std::size_t half : halves_of_block(type)) kept[half] = kept[half + 1] = true;
    if (type == DType::kMXFP4) kept[0] = true;
    for (std::size_t i = 0; i < step; ++i) {
      if (!kept[i]) bytes[block + i] = static_cast<std::byte>(quants);
    }
  }
  return bytes;
}

TEST_P(ParityLinear, TheLargestSumsOfAllSignsSaturateNowhere) {
  const DType type = GetParam();
  if (block_elements(type) == 1) return;
  constexpr std::int64_t kRows = 4, kOutputs = 17, kCols = kSuperBlock;
  ThreadTeam team(1);
  std::vector<float> x(kRows * kCols, 1.0f);  // 127 in every place; then -127, and both in turns
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / kCols;
    if (row == 1 || (row == 2 && i % 2 == 1) || (row == 3 && i % 4 > 1)) x[i] = -1.0f;
  }
  for (const int quants : {0x00, 0xff, 0x7f, 0x80, 0x81, 0x77, 0x88, 0xf0}) {
    const auto bytes = matrix_of(type, kOutputs, kCols, quants);
    const auto w = PackedMatrix::pack({.type = type, .rows = kOutputs, .cols = kCols, .bytes = bytes}, team);
    ASSERT_TRUE(w);
    const auto product = [&](Isa isa) {
      const Activations rows(unchecked_kernels(isa), kRows, kCols, x, row_form({&*w}));
      std::vector<float> y(kRows * kOutputs);
      const LinearJob job{.weights = &*w, .x = &rows.view, .slices = SliceBorders::single(kCols), .y = y.data()};
      run_linear(unchecked_kernels(isa), team, std::span(&job, 1));
      return y;
    };
    const auto expected = product(Isa::kReference);
    for (const Isa isa : supported_isas()) EXPECT_TRUE(same_bits(product(isa), expected)) << to_string(isa) << quants;
  }
}

TEST_P(ParityLinear, SumsFoldedInAnotherOrderAreSeen) {
  // The negative control of the test above.
  const MatmulShape shape{4, 64, 768, 32};
  const StoredMatrix stored(GetParam(), shape.outputs, shape.cols, 5);
  const MatrixView source = stored.view;
  const std::vector<int> division(kReductionSlices, 1);
  EXPECT_TRUE(same_bits(divided_matmul(source, shape, division, 1), divided_matmul(source, shape, {32}, 1)));
  EXPECT_FALSE(same_bits(divided_matmul(source, shape, {12, 12, 8}, 1, false), divided_matmul(source, shape, {32}, 1)));
}

TEST_P(ParityLinear, APartOfAMatrixIsPackedLikeACopyOfIt) {
  const DType type = GetParam();
  ThreadTeam team(2);
  const StoredMatrix stored(type, 50, 160, 11);
  const MatrixView whole = stored.view;
  const auto all = PackedMatrix::pack(whole, team);
  const auto part = PackedMatrix::pack(whole.part({7, 41}, {32, 128}).part({1, 34}, {0, 96}), team);
  ASSERT_TRUE(all && part);
  ASSERT_EQ(part->rows(), 33);
  ASSERT_EQ(part->cols(), 96);
  std::vector<float> row(96), whole_row(160);
  for (std::int64_t r = 0; r < part->rows(); ++r) {
    part->unpack_row(r, row);
    all->unpack_row(r + 8, whole_row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), whole_row.begin() + 32)) << r;
  }
}

TEST(Slices, SubtreesAreTheFewestNodesOfTheTree) {
  const auto nodes = [](int first, int last) { return subtrees({first, last}); };
  EXPECT_EQ(nodes(0, 8), (std::vector<SliceRange>{{0, 8}}));
  EXPECT_EQ(nodes(0, 3), (std::vector<SliceRange>{{0, 2}, {2, 3}}));
  EXPECT_EQ(nodes(3, 6), (std::vector<SliceRange>{{3, 4}, {4, 6}}));
  EXPECT_EQ(nodes(1, 7), (std::vector<SliceRange>{{1, 2}, {2, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(nodes(2, 6), (std::vector<SliceRange>{{2, 4}, {4, 6}}));
  EXPECT_EQ(nodes(11, 21), (std::vector<SliceRange>{{11, 12}, {12, 16}, {16, 20}, {20, 21}}));
  EXPECT_EQ(nodes(0, 32), (std::vector<SliceRange>{{0, 32}}));
}

TEST(Slices, AreNoNarrowerThanTwoBlocksAndOtherwiseAsEvenAsBlocksAllow) {
  const SliceBorders narrow = SliceBorders::canonical(768, 1);
  const SliceBorders wide = SliceBorders::canonical(5632, 1);
  int filled = 0;
  for (int slice = 0; slice < kReductionSlices; ++slice) {
    const int of_narrow = narrow.at(slice + 1) - narrow.at(slice);
    const int of_wide = wide.at(slice + 1) - wide.at(slice);
    filled += of_narrow > 0;
    EXPECT_TRUE(of_narrow == 0 || of_narrow == 64) << slice;
    EXPECT_TRUE(of_wide == 160 || of_wide == 192) << slice;
  }
  EXPECT_EQ(filled, 12);
  EXPECT_EQ(narrow.cols(), 768);
  EXPECT_EQ(wide.cols(), 5632);
}

TEST_P(ParityLinear, IsCloseToTheSumInDoublePrecision) {
  const DType type = GetParam();
  const MatmulShape shape{2, 32, 256, 32};
  ThreadTeam team(1);
  const auto bytes = random_matrix(type, shape.outputs, shape.cols, 6);
  const auto w = PackedMatrix::pack({type, shape.outputs, shape.cols, bytes}, team);
  ASSERT_TRUE(w);
  const auto y = matmul(Isa::kReference, 1, *w, shape, SliceBorders::single(shape.cols));
  const auto x = random_floats(static_cast<std::size_t>(shape.rows * shape.cols), 7);
  const auto bias = random_floats(static_cast<std::size_t>(shape.outputs), 8);
  const auto residual = random_floats(static_cast<std::size_t>(shape.rows * shape.outputs), 9);
  std::vector<float> row(static_cast<std::size_t>(shape.cols));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t o = 0; o < shape.outputs; ++o) {
      w->unpack_row(o, row);
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < shape.cols; ++k) {
        const double term =
            static_cast<double>(row[static_cast<std::size_t>(k)]) * x[static_cast<std::size_t>(r * shape.cols + k)];
        sum += term;
        magnitude += std::fabs(term);
      }
      const auto at = static_cast<std::size_t>(r * shape.outputs + o);
      // Quantised activations lose up to 1/254 of each block's maximum; floats lose cols * 2^-24.
      const double tolerance = block_elements(type) > 1 ? magnitude * 0.02 : magnitude * 256 * 0x1p-24;
      EXPECT_NEAR(y[at], sum + bias[static_cast<std::size_t>(o)] + residual[at], tolerance + 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ParitySuperBlocks,
                         testing::Values(DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                         DType::kIQ4_XS),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });
INSTANTIATE_TEST_SUITE_P(Types, ParityLinear,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                                         DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                         DType::kMXFP4, DType::kInt8),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

TEST(ParityNorm, EqualsReferenceForOddSizes) {
  for (const long n : {1L, 15L, 16L, 17L, 64L, 100L, 256L, 2048L}) {
    const auto x = random_floats(static_cast<std::size_t>(n), 1, 3.0f);
    const auto weight = random_floats(static_cast<std::size_t>(n), 2);
    const auto bias = random_floats(static_cast<std::size_t>(n), 3);
    std::vector<float> rms(x.size()), layer(x.size()), y(x.size());
    kReferenceKernels.rms_norm(x.data(), weight.data(), 1e-5f, n, rms.data());
    kReferenceKernels.layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, n, layer.data());
    for (const Isa isa : supported_isas()) {
      unchecked_kernels(isa).rms_norm(x.data(), weight.data(), 1e-5f, n, y.data());
      EXPECT_TRUE(same_bits(y, rms)) << to_string(isa) << " rms " << n;
      unchecked_kernels(isa).layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, n, y.data());
      EXPECT_TRUE(same_bits(y, layer)) << to_string(isa) << " layer " << n;
    }
  }
}

TEST(ParityElementwise, WhatEncodersActivateWithEqualsReference) {
  std::vector<float> x{0.0f, -0.0f, 1e-30f, -1e30f, std::numeric_limits<float>::infinity()};
  for (float v = -20.0f; v < 20.0f; v += 0.037f) x.push_back(v);
  const auto up = random_floats(x.size(), 6);
  const long n = static_cast<long>(x.size());
  std::vector<float> expected(x.size()), y(x.size());
  for (const Isa isa : supported_isas()) {
    const Kernels& k = unchecked_kernels(isa);
    kReferenceKernels.gelu_erf_mul(x.data(), up.data(), n, expected.data());
    k.gelu_erf_mul(x.data(), up.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.relu(x.data(), n, expected.data());
    k.relu(x.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::max(x[i], 0.0f));
  }
}

TEST(ParityElementwise, EqualsReferenceOverTheWholeRange) {
  std::vector<float> x;
  for (float v = -200.0f; v < 200.0f; v += 0.37f) x.push_back(v);
  for (const float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, 88.0f, -86.0f, 3.4e38f}) x.push_back(v);
  const auto up = random_floats(x.size(), 5);
  const long n = static_cast<long>(x.size());
  std::vector<float> expected(x.size()), y(x.size());
  for (const Isa isa : supported_isas()) {
    const Kernels& k = unchecked_kernels(isa);
    kReferenceKernels.silu_mul(x.data(), up.data(), n, expected.data());
    k.silu_mul(x.data(), up.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.gelu_mul(x.data(), up.data(), n, expected.data());
    k.gelu_mul(x.data(), up.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.gelu(x.data(), n, expected.data());
    k.gelu(x.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.gelu_erf(x.data(), n, expected.data());
    k.gelu_erf(x.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.clamped_swiglu(x.data(), up.data(), 7.0f, n, expected.data());
    k.clamped_swiglu(x.data(), up.data(), 7.0f, n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    y = expected = x;
    kReferenceKernels.soft_cap(30.0f, n, expected.data());
    k.soft_cap(30.0f, n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.scale(0.22f, n, expected.data());
    k.scale(0.22f, n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.add_scaled(0.37f, up.data(), n, expected.data());
    k.add_scaled(0.37f, up.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    kReferenceKernels.sigmoid(x.data(), n, expected.data());
    k.sigmoid(x.data(), n, y.data());
    EXPECT_TRUE(same_bits(y, expected)) << to_string(isa);
    for (const long count : {1L, 7L, 16L, 60L, 129L}) {
      kReferenceKernels.softmax(up.data(), count, expected.data());
      k.softmax(up.data(), count, y.data());
      EXPECT_TRUE(same_bits(y, expected)) << to_string(isa) << " " << count;
    }
  }
  kReferenceKernels.gelu_erf(x.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    if (std::fabs(v) > 80) continue;
    EXPECT_NEAR(y[i], v * 0.5 * (1 + std::erf(v / std::sqrt(2.0))), 3e-7 * (1 + std::fabs(v)));
  }
  y = x;
  kReferenceKernels.soft_cap(30.0f, n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    EXPECT_NEAR(y[i], 30.0 * std::tanh(v / 30.0), 3e-6 * std::min(30.0, std::fabs(v)));
  }
  kReferenceKernels.softmax(up.data(), 60, y.data());
  double total = 0;
  for (std::size_t i = 0; i < 60; ++i) total += std::exp(static_cast<double>(up[i]));
  for (std::size_t i = 0; i < 60; ++i) EXPECT_NEAR(y[i], std::exp(static_cast<double>(up[i])) / total, 1e-6);
  kReferenceKernels.sigmoid(x.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], 1 / (1 + std::exp(-static_cast<double>(x[i]))), 1e-6);
  kReferenceKernels.silu(x.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) > 80) continue;
    EXPECT_NEAR(y[i], x[i] / (1 + std::exp(-static_cast<double>(x[i]))), 1e-6 * (1 + std::fabs(x[i])));
  }
}

TEST(ParityQuantize, EqualsReferenceWithZerosTiesAndExtremes) {
  auto x = random_floats(32 * 40, 11);
  for (int i = 0; i < 32; ++i) x[static_cast<std::size_t>(i)] = 0.0f;
  for (int i = 32; i < 64; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i - 48) * 0.5f;
  x[40] = 63.5f;  // the block's scale becomes 0.5: every value is a tie
  x[70] = 1e30f;
  x[100] = 1e-40f;
  const long n = static_cast<long>(x.size());
  std::vector<signed char> q(x.size()), expected_q(x.size());
  std::vector<float> s(x.size() / 32), expected_s(s.size());
  std::vector<BlockSums> sums(s.size()), expected_sums(s.size());
  for (const long group : {32, 96, 256}) {
    kReferenceKernels.quantize_row(x.data(), n, group, expected_q.data(), expected_s.data(), expected_sums.data());
    for (const Isa isa : supported_isas()) {
      unchecked_kernels(isa).quantize_row(x.data(), n, group, q.data(), s.data(), sums.data());
      EXPECT_EQ(q, expected_q) << to_string(isa);
      EXPECT_EQ(std::memcmp(sums.data(), expected_sums.data(), sums.size() * sizeof(BlockSums)), 0) << to_string(isa);
      EXPECT_TRUE(same_bits(s, expected_s)) << to_string(isa);
    }
  }
}

TEST(ParityOfInt8, GroupsEndWithTheirSlicesAndHaveOneScale) {
  constexpr std::int64_t kCols = 640;
  const auto slices = SliceBorders::canonical(kCols, 320, 2);  // of 320 columns each
  ASSERT_EQ(slices.at(1), 320);
  ThreadTeam team(1);
  const auto bytes = random_matrix(DType::kInt8, 16, kCols, 3);
  const auto w = PackedMatrix::pack({DType::kInt8, 16, kCols, bytes}, team);
  ASSERT_TRUE(w);
  const auto x = random_floats(kCols, 5);
  const Activations rows(kReferenceKernels, 1, kCols, x, row_form(*w, slices, {0, 2}));
  const auto largest = [&](std::size_t begin, std::size_t end) {
    float most = 0;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(x[i]));
    return most / 127.0f;
  };
  const std::size_t borders[] = {0, 256, 320, 576, 640};
  for (std::size_t group = 0; group < 4; ++group) {
    for (std::size_t block = borders[group] / 32; block < borders[group + 1] / 32; ++block) {
      EXPECT_EQ(rows.scales[block], largest(borders[group], borders[group + 1])) << block;
    }
  }
  std::vector<float> y(16), weights(kCols);
  const LinearJob job{.weights = &*w, .x = &rows.view, .slices = slices, .y = y.data()};
  run_linear(kReferenceKernels, team, std::span(&job, 1));
  for (std::int64_t o = 0; o < 16; ++o) {
    w->unpack_row(o, weights);
    double expected = 0, size = 0;
    for (std::size_t k = 0; k < kCols; ++k) {
      expected += static_cast<double>(weights[k]) * static_cast<double>(x[k]);
      size += std::fabs(static_cast<double>(weights[k]));
    }
    EXPECT_NEAR(y[static_cast<std::size_t>(o)], expected, size * 0.5 * static_cast<double>(largest(0, kCols)));
  }
}

}  // namespace
}  // namespace butterfly
