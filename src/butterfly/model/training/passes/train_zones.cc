#include "butterfly/model/training/passes/train_zones.h"

#include <algorithm>

#include "butterfly/tensor/dtype.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kFloatBytes = sizeof(float);

std::uint32_t number_of(std::int64_t count) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(count, 0, UINT32_MAX));
}

std::uint8_t type_of(const TrainContext& context) {
  return static_cast<std::uint8_t>(context.bf16() ? DType::kBF16 : DType::kF32);
}

/// Pairs of a query and a key that it sees, of one head and sequence.
std::uint64_t visible_pairs(std::uint64_t seq, std::uint64_t window) {
  if (window == 0 || window >= seq) return seq * (seq + 1) / 2;
  return window * (window + 1) / 2 + (seq - window) * window;
}

/// How often the [seq, seq] matrices go to memory and back: scores, softmax and values; with their gradients.
std::uint64_t matrix_passes(trace::Pass pass) {
  return pass == trace::Pass::kInputGradient ? 7 : 4;
}

}  // namespace

Status run_matmul(const TrainContext& context, trace::Zone zone, trace::Pass pass, const GemmCall& call) {
  const auto m = static_cast<std::uint64_t>(call.m), n = static_cast<std::uint64_t>(call.n);
  const auto k = static_cast<std::uint64_t>(call.k);
  const std::uint64_t written = call.accumulate == Accumulate::kYes ? 2 : 1;
  const trace::Scope scope(zone, {.number = number_of(call.m),
                                  .in = number_of(call.k),
                                  .out = number_of(call.n),
                                  .flops = 2 * m * n * k,
                                  .bytes = (m * k + k * n) * context.operand_bytes() + written * m * n * kFloatBytes,
                                  .type = type_of(context),
                                  .pass = pass});
  return context.gemm->run(call);
}

trace::Work work_of(const ElementWork& elements) {
  const std::uint64_t count = static_cast<std::uint64_t>(elements.rows) * static_cast<std::uint64_t>(elements.cols);
  return {.number = number_of(elements.rows),
          .in = number_of(elements.cols),
          .out = number_of(elements.cols),
          .bytes = count * elements.bytes,
          .pass = elements.pass};
}

trace::Work attention_work(const TrainContext& context, std::int64_t window, trace::Pass pass) {
  const ModelConfig& config = *context.config;
  const bool fused = context.options.fusion.attention;
  const bool backward = pass == trace::Pass::kInputGradient;
  const auto seq = static_cast<std::uint64_t>(context.seq());
  const std::uint64_t heads = static_cast<std::uint64_t>(config.heads) * static_cast<std::uint64_t>(context.batch());
  const std::uint64_t pairs = fused ? visible_pairs(seq, static_cast<std::uint64_t>(window)) : seq * seq;
  const std::uint64_t matmuls = !backward ? 2 : fused ? 5 : 4;
  const auto rows = static_cast<std::uint64_t>(context.rows());
  const auto mixed = static_cast<std::uint64_t>(config.q_dim()), qkv = static_cast<std::uint64_t>(context.qkv_dim());
  // Read and, rotated, written; backward they and their gradients, and the output and its gradient.
  const std::uint64_t elements = backward ? 2 * qkv + 2 * mixed : 2 * qkv + mixed;
  const std::uint64_t packed = context.bf16() ? 2 * (backward ? qkv : mixed) : 0;
  const std::uint64_t matrices = fused ? 0 : matrix_passes(pass) * heads * seq * seq * kFloatBytes;
  return {.number = number_of(context.rows()),
          .in = number_of(context.seq()),
          .out = number_of(config.heads),
          .flops = 2 * matmuls * static_cast<std::uint64_t>(config.head_dim) * pairs * heads,
          .bytes = rows * (elements * kFloatBytes + packed) + matrices,
          .pass = pass};
}

}  // namespace butterfly
