// Training's matmuls (GFLOP/s) and row kernels (GB/s) on one thread and two, and attention (GFLOP/s, causal half).
//   kernel_bench --benchmark_filter='Matmul/.*'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <functional>
#include <random>
#include <vector>

#include "butterfly/kernel/gemm/gemm.h"
#include "butterfly/kernel/training/training_dispatch.h"

namespace butterfly {
namespace {

struct alignas(64) Line {
  float floats[16];
};

/// Small random numbers, aligned; read as bf16 they are numbers as well.
std::vector<Line> random_lines(std::int64_t floats) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<Line> lines(static_cast<std::size_t>(floats / 16 + 1));
  for (Line& line : lines) {
    for (float& value : line.floats) value = uniform(engine);
  }
  return lines;
}

struct MatmulShape {
  const char* name;
  std::int64_t m, n, k;
  Transpose a_transposed, b_transposed;
};

// TinyTransformer small and medium, GPT-2 124M: Y = X W^T, dX = dY W, dW = dY^T X.
constexpr MatmulShape kMatmuls[] = {
    {"forward", 1024, 1536, 512, Transpose::kNo, Transpose::kYes},
    {"forward", 8192, 4096, 1024, Transpose::kNo, Transpose::kYes},
    {"forward", 1024, 50257, 768, Transpose::kNo, Transpose::kYes},
    {"input", 1024, 512, 1536, Transpose::kNo, Transpose::kNo},
    {"input", 8192, 1024, 4096, Transpose::kNo, Transpose::kNo},
    {"weight", 1536, 512, 1024, Transpose::kYes, Transpose::kNo},
    {"weight", 4096, 1024, 8192, Transpose::kYes, Transpose::kNo},
    {"weight", 1000, 512, 1024, Transpose::kYes, Transpose::kNo},
};

void matmul(benchmark::State& state, const MatmulShape& shape, Precision precision, int threads) {
  ThreadTeam team(threads);
  const std::unique_ptr<Gemm> gemm = make_gemm(precision, supported_isas().back(), team);
  const auto a = random_lines(shape.m * shape.k);
  const auto b = random_lines(shape.k * shape.n);
  auto c = random_lines(shape.m * shape.n);
  const bool at = shape.a_transposed == Transpose::kYes;
  const bool bt = shape.b_transposed == Transpose::kYes;
  const GemmCall call{.m = shape.m,
                      .n = shape.n,
                      .k = shape.k,
                      .a = a.data(),
                      .b = b.data(),
                      .c = c.data()->floats,
                      .a_stride = at ? shape.m : shape.k,
                      .b_stride = bt ? shape.k : shape.n,
                      .c_stride = shape.n,
                      .a_transposed = shape.a_transposed,
                      .b_transposed = shape.b_transposed};
  for (auto _ : state) {
    const Status status = gemm->run(call);
    if (!status) return state.SkipWithError(status.error().message.c_str());
  }
  const double flops = 2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k);
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void attention(benchmark::State& state, const TrainingKernels& kernels, long seq, long head_dim, bool backward) {
  std::vector<std::vector<Line>> rows;
  for (int i = 0; i < 8; ++i) rows.push_back(random_lines(seq * head_dim));
  auto scratch = random_lines(train_attention_scratch(seq, head_dim));
  auto log_sum_exp = random_lines(seq);
  const auto at = [&rows](std::size_t i) { return rows[i].data()->floats; };
  const TrainAttentionArgs forward{seq,
                                   head_dim,
                                   0.125f,
                                   at(0),
                                   at(1),
                                   at(2),
                                   head_dim,
                                   head_dim,
                                   head_dim,
                                   at(3),
                                   head_dim,
                                   log_sum_exp.data()->floats,
                                   scratch.data()->floats};
  kernels.attention(forward);
  for (auto _ : state) {
    if (backward) {
      kernels.attention_backward({forward, at(4), head_dim, at(5), at(6), at(7), head_dim, head_dim, head_dim});
    } else {
      kernels.attention(forward);
    }
  }
  const double products = backward ? 5.0 : 2.0;
  const double flops = matmuls * static_cast<double>(seq * seq) * static_cast<double>(head_dim);
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

/// A kernel over rows of `n` floats, of which it moves `bytes` for each.
struct RowKernel {
  const char* name;
  long n;
  double bytes;
  std::function<void(const TrainingKernels&, long n, float* const* rows)> run;
};

std::vector<RowKernel> row_kernels() {
  constexpr long kRow = 1024;
  constexpr long kLong = 4 << 20;
  float* none = nullptr;
  return {
      {"rms_norm", kRow, 12, [](auto& k, long n, auto* r) { k.rms_norm(r[0], r[1], 1e-5f, n, r[2], r[3]); }},
      {"rms_norm_backward", kRow, 28,
       [](auto& k, long n, auto* r) { k.rms_norm_backward(r[0], r[1], r[2], 1.0f, n, r[3], r[4]); }},
      {"layer_norm", kRow, 16,
       [](auto& k, long n, auto* r) { k.layer_norm(r[0], r[1], r[2], 1e-5f, n, r[3], r[4], r[4] + 1); }},
      {"layer_norm_backward", kRow, 36,
       [](auto& k, long n, auto* r) { k.layer_norm_backward(r[0], r[1], r[2], 0, 1.0f, n, r[3], r[4], r[5]); }},
      {"silu_mul", kRow, 12, [](auto& k, long n, auto* r) { k.silu_mul(r[0], r[1], n, r[2]); }},
      {"silu_mul_backward", kRow, 20,
       [](auto& k, long n, auto* r) { k.silu_mul_backward(r[0], r[1], r[2], n, r[3], r[4]); }},
      {"gelu", kRow, 8, [](auto& k, long n, auto* r) { k.gelu(r[0], n, r[1]); }},
      {"gelu_backward", kRow, 12, [](auto& k, long n, auto* r) { k.gelu_backward(r[0], r[1], n, r[2]); }},
      {"softmax_cross_entropy", 50257, 8,
       [](auto& k, long n, auto* r) { benchmark::DoNotOptimize(k.softmax_cross_entropy(r[0], n, n / 2, 1.0f)); }},
      {"adamw", kLong, 28, [](auto& k, long n, auto* r) { k.adamw({.rate = 1e-6f}, n, r[0], r[1], r[2], r[3]); }},
      {"sgd", kLong, 12, [none](auto& k, long n, auto* r) { k.sgd(1e-6f, 0, 0, 1, n, r[0], r[1], none); }},
      {"add", kLong, 12, [](auto& k, long n, auto* r) { k.add(r[0], n, r[1]); }},
      {"sum_of_squares", kLong, 4,
       [](auto& k, long n, auto* r) { benchmark::DoNotOptimize(k.sum_of_squares(r[0], n)); }},
      {"floats_to_bf16", kLong, 6,
       [](auto& k, long n, auto* r) { k.floats_to_bf16(r[0], n, reinterpret_cast<unsigned short*>(r[1])); }},
  };
}

void rows(benchmark::State& state, const TrainingKernels& kernels, const RowKernel& kernel) {
  std::vector<std::vector<Line>> lines;
  float* pointers[6];
  for (float*& pointer : pointers) {
    lines.push_back(random_lines(kernel.n));
    for (Line& line : lines.back()) {
      for (float& value : line.floats) value = value < 0.0f ? -value : value;  // second moments
    }
    pointer = lines.back().data()->floats;
  }
  for (auto _ : state) kernel.run(kernels, kernel.n, pointers);
  state.counters["B/s"] =
      benchmark::Counter(kernel.bytes * static_cast<double>(kernel.n), benchmark::Counter::kIsIterationInvariantRate);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const MatmulShape& shape : kMatmuls) {
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      for (const int threads : {1, 2}) {
        benchmark::RegisterBenchmark(fmt::format("Matmul/{}/{}x{}x{}/{}/threads:{}", shape.name, shape.m, shape.n,
                                                 shape.k, to_string(precision), threads)
                                         .c_str(),
                                     matmul, shape, precision, threads)
            ->UseRealTime();
      }
    }
  }
  for (const Isa isa : supported_isas()) {
    const TrainingKernels& kernels = training_kernels(isa);
    for (const long seq : {128, 512, 1024}) {
      for (const long head_dim : {64, 128}) {
        for (const bool backward : {false, true}) {
          benchmark::RegisterBenchmark(
              fmt::format("Attention{}/{}/seq:{}/head_dim:{}", backward ? "Backward" : "", kernels.name, seq, head_dim)
                  .c_str(),
              attention, kernels, seq, head_dim, backward);
        }
      }
    }
    for (const RowKernel& kernel : row_kernels()) {
      benchmark::RegisterBenchmark(fmt::format("Rows/{}/{}", kernel.name, kernels.name).c_str(), rows, kernels, kernel);
    }
  }
  return true;
}();

}  // namespace
}  // namespace butterfly
