#include <algorithm>
#include <array>

#include "bench/kernels/kernel_case.h"
#include "butterfly/kernel/inference/row_codec.h"
#include "butterfly/tensor/aligned_buffer.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kRowElements = 4096;  // of conversions, whole blocks of every type

/// Floats in, floats out; of the output as much as an operation writes.
struct RowBuffers {
  static Result<RowBuffers> create(std::uint64_t bytes) {
    RowBuffers made;
    made.floats = bytes / sizeof(float);
    BF_ASSIGN_OR_RETURN(made.in, AlignedBuffer::create(bytes));
    BF_ASSIGN_OR_RETURN(made.out, AlignedBuffer::create(bytes));
    float* x = made.x();
    for (std::size_t i = 0; i < made.floats; ++i) x[i] = static_cast<float>(i % 4093) * 0.37f - 700.0f;
    std::ranges::fill(MutableByteSpan(made.out.data(), made.out.bytes()), std::byte{0});  // really there
    return made;
  }
  float* x() const { return reinterpret_cast<float*>(in.data()); }
  float* y() const { return reinterpret_cast<float*>(out.data()); }
  std::size_t floats = 0;
  AlignedBuffer in, out;
};

/// work(row) for each, divided among the team.
template <typename Work>
void for_rows(ThreadTeam& team, std::size_t rows, const Work& work) {
  team.run([&](int member) {
    const WorkRange mine = split_work(static_cast<long>(rows), member, team.size());
    for (long row = mine.begin; row < mine.end; ++row) work(static_cast<std::size_t>(row));
  });
}

/// An operation of n floats. `floats_moved`: read and written for each.
struct RowOperation {
  const char* name;
  std::int64_t n;
  double bytes_each;
  void (*run)(const Kernels& kernels, const float* x, const float* weights, long n, float* y);
};

constexpr float kEpsilon = 1e-5f;

void row_rms_norm(const Kernels& kernels, const float* x, const float* weights, long n, float* y) {
  kernels.rms_norm(x, weights, kEpsilon, n, y);
}
void row_layer_norm(const Kernels& kernels, const float* x, const float* weights, long n, float* y) {
  kernels.layer_norm(x, weights, weights, kEpsilon, n, y);
}
void row_softmax(const Kernels& kernels, const float* x, const float* /*weights*/, long n, float* y) {
  kernels.softmax(x, n, y);
}
void row_silu_mul(const Kernels& kernels, const float* x, const float* /*weights*/, long n, float* y) {
  kernels.silu_mul(x, y, n, y);
}
void row_gelu(const Kernels& kernels, const float* x, const float* /*weights*/, long n, float* y) {
  kernels.gelu(x, n, y);
}
void row_quantize(const Kernels& kernels, const float* x, const float* /*weights*/, long n, float* y) {
  const long blocks = n / kQuantBlock;
  auto* scales = y;
  auto* sums = reinterpret_cast<BlockSums*>(y + blocks);
  kernels.quantize_row(x, n, kQuantBlock, reinterpret_cast<signed char*>(y + 3 * blocks), scales, sums);
}

constexpr std::array<RowOperation, 10> kRowOperations{{{"rms_norm", 2048, 8, row_rms_norm},
                                                       {"rms_norm", 8192, 8, row_rms_norm},
                                                       {"layer_norm", 2048, 8, row_layer_norm},
                                                       {"layer_norm", 8192, 8, row_layer_norm},
                                                       {"softmax", 2048, 8, row_softmax},
                                                       {"softmax", 32000, 8, row_softmax},
                                                       {"silu_mul", 5632, 12, row_silu_mul},
                                                       {"gelu", 3072, 8, row_gelu},
                                                       {"quantize", 2048, 4 + 1 + 0.375, row_quantize},
                                                       {"quantize", 8192, 4 + 1 + 0.375, row_quantize}}};

}  // namespace

Status visit_rows(const KernelWork& work, const KernelVisit& visit) {
  const std::uint64_t bytes = std::max<std::uint64_t>(work.bytes, std::uint64_t{1} << 20);
  BF_ASSIGN_OR_RETURN(const RowBuffers buffers, RowBuffers::create(bytes));
  const std::vector<float> weights(32'000, 1.0f);
  for (const RowOperation& operation : kRowOperations) {
    const auto n = static_cast<std::size_t>(operation.n);
    const std::size_t rows = buffers.floats / n;
    KernelCase one{.operation = operation.name,
                   .type = "f32",
                   .shape = fmt::format("{} x {}", rows, operation.n),
                   .flops = 0,
                   .bytes = operation.bytes_each * static_cast<double>(rows * n)};
    one.run = [&](const Kernels& kernels, ThreadTeam& team) {
      for_rows(team, rows, [&](std::size_t row) {
        operation.run(kernels, buffers.x() + row * n, weights.data(), operation.n, buffers.y() + row * n);
      });
    };
    BF_TRY(visit(one));
  }
  return {};
}

Status visit_conversions(DType type, const KernelWork& work, const KernelVisit& visit) {
  // The types whose blocks are searched for take a thousand times as long as memory does.
  const bool quick = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kQ8_0;
  const std::uint64_t least = std::uint64_t{1} << 20;
  const std::uint64_t bytes = quick ? std::max(work.bytes, least) : least;
  BF_ASSIGN_OR_RETURN(const RowBuffers wide, RowBuffers::create(bytes));
  const std::size_t rows = wide.floats / kRowElements;
  const std::size_t row = *row_bytes(type, kRowElements);
  BF_ASSIGN_OR_RETURN(const AlignedBuffer narrow, AlignedBuffer::create(rows * row));
  std::ranges::fill(MutableByteSpan(narrow.data(), narrow.bytes()), std::byte{0});
  const MutableByteSpan stored(narrow.data(), narrow.bytes());
  KernelCase one{.operation = "conversion",
                 .type = fmt::format("f32 to {}", to_string(type)),
                 .shape = fmt::format("{} x {}", rows, kRowElements),
                 .flops = 0,
                 .bytes = static_cast<double>(rows * (row + kRowElements * sizeof(float)))};
  one.run = [&](const Kernels& kernels, ThreadTeam& team) {
    for_rows(team, rows, [&](std::size_t r) {
      encode_row(kernels, type, std::span(wide.x() + r * kRowElements, kRowElements), stored.subspan(r * row, row));
    });
  };
  BF_TRY(visit(one));
  one.type = fmt::format("{} to f32", to_string(type));
  one.run = [&](const Kernels& kernels, ThreadTeam& team) {
    for_rows(team, rows, [&](std::size_t r) {
      decode_row(kernels, type, stored.subspan(r * row, row), std::span(wide.y() + r * kRowElements, kRowElements));
    });
  };
  return visit(one);
}

}  // namespace butterfly::app
