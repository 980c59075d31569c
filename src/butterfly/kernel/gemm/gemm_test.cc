// Matmuls of every transposition, precision and engine against naive ones in double; the same bits from any team.
#include "butterfly/kernel/gemm/gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "butterfly/kernel/gemm/gemm_tiles.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/tensor/half.h"

namespace butterfly {
namespace {

struct Shape {
  std::int64_t m, n, k;
};

/// The operands of one matmul, in rows with some space behind them.
struct Operands {
  Operands(Precision precision, const Shape& shape, Transpose ta, Transpose tb, Accumulate accumulate, bool has_bias) {
    constexpr std::int64_t kSpace = 5;
    std::mt19937 engine(static_cast<std::uint32_t>(shape.m * 31 + shape.n * 7 + shape.k));
    call = {.m = shape.m, .n = shape.n, .k = shape.k, .a_transposed = ta, .b_transposed = tb, .accumulate = accumulate};
    call.a_stride = (ta == Transpose::kYes ? shape.m : shape.k) + kSpace;
    call.b_stride = (tb == Transpose::kYes ? shape.k : shape.n) + kSpace;
    call.c_stride = shape.n + kSpace;
    fill(a, (ta == Transpose::kYes ? shape.k : shape.m) * call.a_stride, engine);
    fill(b, (tb == Transpose::kYes ? shape.n : shape.k) * call.b_stride, engine);
    fill(c, shape.m * call.c_stride, engine);
    fill(bias, shape.n, engine);
    call.a = a.data();
    call.b = b.data();
    if (precision == Precision::kBfloat16) {
      call.a = narrow(a, narrow_a);
      call.b = narrow(b, narrow_b);
    }
    if (has_bias) call.bias = bias.data();
  }
  static void fill(std::vector<float>& values, std::int64_t count, std::mt19937& engine) {
    std::normal_distribution<float> normal;
    values.resize(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(engine);
  }
  /// Rounds the floats as well, so that the oracle sees what the matmul sees.
  static const void* narrow(std::vector<float>& values, std::vector<std::uint16_t>& halves) {
    for (float& value : values) {
      halves.push_back(float_to_bfloat16(value));
      value = bfloat16_to_float(halves.back());
    }
    return halves.data();
  }

  GemmCall call;
  std::vector<float> a, b, c, bias;
  std::vector<std::uint16_t> narrow_a, narrow_b;
};

/// The largest |C - C in double| over the sum of absolute products of its element, padding included.
double worst_error(const Operands& operands, const std::vector<float>& c) {
  const GemmCall& call = operands.call;
  double worst = 0.0;
  for (std::int64_t i = 0; i < call.m; ++i) {
    for (std::int64_t j = 0; j < call.c_stride; ++j) {
      const auto at = static_cast<std::size_t>(i * call.c_stride + j);
      double sum = j >= call.n || call.accumulate == Accumulate::kYes ? operands.c[at] : 0.0;
      double size = std::fabs(sum);
      for (std::int64_t k = 0; j < call.n && k < call.k; ++k) {
        const bool at_transposed = call.a_transposed == Transpose::kYes;
        const bool bt_transposed = call.b_transposed == Transpose::kYes;
        const double x =
            operands.a[static_cast<std::size_t>(at_transposed ? k * call.a_stride + i : i * call.a_stride + k)];
        const double y =
            operands.b[static_cast<std::size_t>(bt_transposed ? j * call.b_stride + k : k * call.b_stride + j)];
        sum += x * y;
        size += std::fabs(x * y);
      }
      if (call.bias != nullptr && j < call.n) {
        sum += call.bias[j];
        size += std::fabs(call.bias[j]);
      }
      worst = std::max(worst, std::fabs(c[at] - sum) / (size + 1e-30));
    }
  }
  return worst;
}

std::vector<float> matmul(Gemm& gemm, const Operands& operands) {
  std::vector<float> c = operands.c;
  GemmCall call = operands.call;
  call.c = c.data();
  const Status status = gemm.run(call);
  EXPECT_TRUE(status) << status.error().message;
  return c;
}

struct Case {
  Precision precision;
  Isa isa;
};
class Matmuls : public testing::TestWithParam<Case> {};

TEST_P(Matmuls, EqualNaiveOnesInDoubleForAllTranspositionsSumsAndBiases) {
  ThreadTeam team(2);
  const auto gemm = make_gemm(GetParam().precision, GetParam().isa, team);
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{64, 64, 64}, Shape{130, 67, 33}, Shape{300, 600, 50},
                             Shape{30, 40, 2200}}) {
    for (int choice = 0; choice < 16; ++choice) {
      const Operands operands(GetParam().precision, shape, (choice & 1) != 0 ? Transpose::kYes : Transpose::kNo,
                              (choice & 2) != 0 ? Transpose::kYes : Transpose::kNo,
                              (choice & 4) != 0 ? Accumulate::kYes : Accumulate::kNo, (choice & 8) != 0);
      // Each of k sums rounds once: k * 2^-24 of the sum of absolute products.
      const double tolerance = static_cast<double>(shape.k + 4) * 0x1p-24;
      EXPECT_LE(worst_error(operands, matmul(*gemm, operands)), tolerance)
          << shape.m << " x " << shape.n << " x " << shape.k << ", choice " << choice;
    }
  }
}

TEST_P(Matmuls, OfTheSameShapeButOtherStridesAreNotMistakenForEachOther) {
  ThreadTeam team(1);
  const auto gemm = make_gemm(GetParam().precision, GetParam().isa, team);
  Operands wide(GetParam().precision, {20, 30, 40}, Transpose::kNo, Transpose::kNo, Accumulate::kNo, false);
  matmul(*gemm, wide);
  // The same numbers read as matrices of other rows, one after the other.
  for (std::int64_t* stride : {&wide.call.a_stride, &wide.call.b_stride, &wide.call.c_stride}) {
    *stride -= 2;
    EXPECT_LE(worst_error(wide, matmul(*gemm, wide)), 44 * 0x1p-24);
  }
}

TEST_P(Matmuls, OverNothingAreTheBias) {
  ThreadTeam team(1);
  const auto gemm = make_gemm(GetParam().precision, GetParam().isa, team);
  for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
    const Operands operands(GetParam().precision, {4, 6, 0}, Transpose::kNo, Transpose::kNo, accumulate, true);
    EXPECT_LE(worst_error(operands, matmul(*gemm, operands)), 0x1p-23);
  }
  const Operands none(GetParam().precision, {0, 6, 3}, Transpose::kNo, Transpose::kNo, Accumulate::kNo, false);
  EXPECT_TRUE(matmul(*gemm, none).empty());
}

std::vector<Case> every_case() {
  std::vector<Case> cases;
  for (const Isa isa : supported_isas()) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) cases.push_back({precision, isa});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Matmuls, testing::ValuesIn(every_case()), [](const auto& test) {
  return fmt::format("{}_{}", to_string(test.param.isa), to_string(test.param.precision));
});

TEST(ParityMatmuls, AreTheSameBitsForTeamsOfOneTwoAndThree) {
  for (const Isa isa : supported_isas()) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      for (const Shape& shape : {Shape{257, 300, 129}, Shape{1030, 520, 64}, Shape{530, 270, 1100}}) {
        const Operands operands(precision, shape, Transpose::kYes, Transpose::kNo, Accumulate::kYes, true);
        std::vector<std::vector<float>> results;
        for (const int threads : {1, 2, 3}) {
          ThreadTeam team(threads);
          const auto gemm = make_gemm(precision, isa, team);
          matmul(*gemm, operands);
          results.push_back(matmul(*gemm, operands));
        }
        for (const auto& result : results) {
          EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0)
              << make_gemm(precision, isa, *std::make_unique<ThreadTeam>(1))->name() << " " << to_string(precision);
        }
      }
    }
  }
}

std::ptrdiff_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(Gemm, StartsNoThreadsOfItsOwn) {
  ThreadTeam team(2);
  for (const Isa isa : supported_isas()) {
    const auto gemm = make_gemm(Precision::kFloat32, isa, team);
    const auto before = threads_of_process();
    const Operands operands(Precision::kFloat32, {1024, 512, 256}, Transpose::kNo, Transpose::kNo, Accumulate::kNo,
                            true);
    matmul(*gemm, operands);
    EXPECT_EQ(threads_of_process(), before) << gemm->name();
  }
}

TEST(ParityMatmuls, LargerThanTheCachesAreTheSameBitsWhereRowsAreNotWholeLines) {
  constexpr std::int64_t kSpace = 16;
  const Shape shape{1100, 1024, 70};
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    ThreadTeam team(2);
    const auto gemm = make_gemm(precision, supported_isas().back(), team);
    const Operands operands(precision, shape, Transpose::kNo, Transpose::kYes, Accumulate::kNo, true);
    GemmCall call = operands.call;
    call.c_stride = shape.n + kSpace;
    auto memory = AlignedBuffer::create(static_cast<std::uint64_t>((shape.m * call.c_stride + 1) * 4));
    ASSERT_TRUE(memory);
    std::vector<std::vector<float>> results;
    for (const std::int64_t shift : {0, 1}) {
      call.c = reinterpret_cast<float*>(memory->data()) + shift;
      std::fill_n(call.c, shape.m * call.c_stride, 7.0f);
      ASSERT_TRUE(gemm->run(call));
      results.emplace_back(call.c, call.c + shape.m * call.c_stride);
    }
    EXPECT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0) << gemm->name();
  }
}

void expect_to_cover(const TileGrid& grid, const Shape& shape) {
  EXPECT_GE(grid.rows * grid.row_tiles, shape.m);
  EXPECT_GE(grid.cols * grid.col_tiles, shape.n);
  EXPECT_LT(grid.rows * (grid.row_tiles - 1), shape.m);
  EXPECT_LT(grid.cols * (grid.col_tiles - 1), shape.n);
}

TEST(Gemm, TilesCoverTheMatrixAndAreManyEnoughToShare) {
  for (const Shape& shape : {Shape{1, 1, 0}, Shape{7, 50257, 0}, Shape{1024, 512, 0}, Shape{8192, 4096, 0},
                             Shape{513, 3, 0}, Shape{1000, 1000, 0}, Shape{7, 100'000, 0}, Shape{100'000, 7, 0}}) {
    const TileGrid grid = plan_tiles(shape.m, shape.n);
    expect_to_cover(grid, shape);
    const bool large = shape.m * shape.n >= 1024 * 512;
    if (large) {
      EXPECT_GE(grid.row_tiles * grid.col_tiles, 8);
    }
    const auto own = make_packed_engine(Precision::kFloat32, supported_isas().back());
    for (const int members : {1, 2, 3, 8}) {
      if (own == nullptr) continue;
      const TileGrid packed = own->plan(shape.m, shape.n, members);
      expect_to_cover(packed, shape);
      if (large) {
        EXPECT_GE(packed.row_tiles * packed.col_tiles, members);
      }
    }
  }
}

TEST(Precision, IsReadAsItIsWritten) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    EXPECT_EQ(*parse_precision(to_string(precision)), precision);
  }
  const auto wrong = parse_precision("fp64");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(wrong.error().message, "unknown precision 'fp64' (known: fp32, bf16)");
}

}  // namespace
}  // namespace butterfly
