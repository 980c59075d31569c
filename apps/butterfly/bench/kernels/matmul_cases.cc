#include <algorithm>
#include <random>

#include "bench/kernels/kernel_case.h"
#include "butterfly/base/check.h"
#include "butterfly/kernel/inference/linear.h"
#include "butterfly/tensor/quantize.h"

namespace butterfly::app {
namespace {

/// A few random rows again and again: what they are does not matter to the time.
Result<PackedMatrix> random_matrix(DType type, const MatrixShape& shape, ThreadTeam& team) {
  constexpr std::int64_t kDistinct = 16;
  const auto in = static_cast<std::size_t>(shape.in);
  const auto row = row_bytes(type, in);
  if (!row) {
    return make_error(ErrorCode::kInvalidArgument, "{} columns are no whole blocks of {}, which have {}", shape.in,
                      to_string(type), block_elements(type));
  }
  std::vector<std::byte> bytes(*row * static_cast<std::size_t>(shape.out));
  std::mt19937 engine(17);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> values(in);
  for (std::int64_t r = 0; r < shape.out; ++r) {
    const auto to = MutableByteSpan(bytes).subspan(static_cast<std::size_t>(r) * *row, *row);
    if (r >= kDistinct) {
      std::ranges::copy(ByteSpan(bytes).subspan(static_cast<std::size_t>(r % kDistinct) * *row, *row), to.begin());
      continue;
    }
    for (float& value : values) value = normal(engine);
    encode_row(type, values, to);
  }
  return PackedMatrix::pack({.type = type, .rows = shape.out, .cols = shape.in, .bytes = bytes}, team);
}

/// Activations, and memory for what a matmul makes of them.
struct MatmulInput {
  MatmulInput(std::int64_t rows, const MatrixShape& shape)
      : values(static_cast<std::size_t>(rows * shape.in)),
        quants(values.size()),
        scales(static_cast<std::size_t>(rows) * (static_cast<std::size_t>(shape.in) / kQuantBlock + 1)),
        sums(scales.size()),
        y(static_cast<std::size_t>(rows * shape.out)),
        view{.rows = rows,
             .cols = shape.in,
             .values = values.data(),
             .quants = quants.data(),
             .scales = scales.data(),
             .sums = sums.data()} {
    std::mt19937 engine(18);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(engine);
  }
  MatmulInput(const MatmulInput&) = delete;
  std::vector<float> values;
  std::vector<std::int8_t> quants;
  std::vector<float> scales;
  std::vector<BlockSums> sums;
  std::vector<float> y;
  ActivationRows view;
};

/// As a step does it: activations are quantised first where the weights are.
void multiply(const Kernels& kernels, ThreadTeam& team, const PackedMatrix& weights, const SliceBorders& slices,
              MatmulInput& x) {
  if (const RowForm form = row_form(weights, slices, {0, slices.count()}); form.quantised) {
    team.run([&](int member) {
      const WorkRange mine = split_work(x.view.rows, member, team.size());
      for (long row = mine.begin; row < mine.end; ++row) quantize_activation_row(kernels, x.view, row, form);
    });
  }
  const LinearJob job{.weights = &weights, .x = &x.view, .slices = slices, .y = x.y.data()};
  run_linear(kernels, team, std::span(&job, 1));
}

}  // namespace

std::vector<MatrixShape> layer_matrices() {
  return {{2560, 2048, 0}, {2048, 2048, 64}, {11264, 2048, 0}, {2048, 5632, 1}};
}

Status visit_matmuls(DType type, const KernelWork& work, ThreadTeam& packers, const KernelVisit& visit) {
  for (const MatrixShape& shape : work.shapes) {
    std::vector<PackedMatrix> matrices;
    std::uint64_t packed = 0;
    while (matrices.empty() || packed < work.bytes) {
      BF_ASSIGN_OR_RETURN(PackedMatrix matrix, random_matrix(type, shape, packers));
      packed += matrix.bytes();
      matrices.push_back(std::move(matrix));
    }
    const SliceBorders slices =
        shape.unit > 0 ? SliceBorders::canonical(shape.in, shape.unit) : SliceBorders::single(shape.in);
    for (const std::int64_t rows : work.rows) {
      MatmulInput x(rows, shape);
      const std::size_t count = rows == 1 ? matrices.size() : 1;
      const auto elements = static_cast<double>(shape.in + shape.out) * static_cast<double>(rows);
      KernelCase one{.operation = "matmul",
                     .type = std::string(to_string(type)),
                     .shape = fmt::format("{} x {} to {}", rows, shape.in, shape.out),
                     .flops = 2.0 * static_cast<double>(rows * shape.in) * static_cast<double>(shape.out),
                     .bytes = static_cast<double>(matrices.front().bytes()) + elements * sizeof(float),
                     .calls = static_cast<int>(count)};
      one.run = [&](const Kernels& kernels, ThreadTeam& team) {
        for (std::size_t i = 0; i < count; ++i) multiply(kernels, team, matrices[i], slices, x);
      };
      BF_TRY(visit(one));
    }
  }
  return {};
}

}  // namespace butterfly::app
