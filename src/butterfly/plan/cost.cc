#include "butterfly/plan/cost.h"

#include <algorithm>
#include <limits>

namespace butterfly {
namespace {

/// Rows that are no whole number of blocks cannot be quantised: files keep those matrices in f32.
std::uint64_t matrix_bytes(DType type, std::uint64_t rows, std::uint64_t cols) {
  return rows * row_bytes(type, cols).value_or(cols * sizeof(float));
}

double seconds(double bytes, double flops, DType weight_type, const NodeDescriptor& node) {
  const bool quantised = block_elements(weight_type) > 1;
  const double gflops = quantised && node.int8_gops > 0.0 ? node.int8_gops : node.fp32_gflops;
  const auto time = [](double amount, double giga_per_s) {
    if (amount <= 0.0) return 0.0;
    return giga_per_s > 0.0 ? amount / (giga_per_s * 1e9) : std::numeric_limits<double>::infinity();
  };
  return std::max(time(bytes, node.memory_read_gb_per_s), time(flops, gflops));
}

}  // namespace

Result<ModelCost> model_cost(const ModelConfig& config, DType kv_type) {
  BF_TRY(validate(config));
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const auto q = static_cast<std::uint64_t>(config.q_dim());
  const auto k = static_cast<std::uint64_t>(config.kv_dim());
  const auto f = static_cast<std::uint64_t>(config.ff_dim);
  const auto vocab = static_cast<std::uint64_t>(config.vocab);
  const DType type = config.weight_type;
  const bool gated = config.mlp == MlpKind::kGated;
  const std::uint64_t norm = config.norm_bias ? 2 * d : d;

  ModelCost cost;
  cost.weight_type = type;
  std::uint64_t vectors = 2 * norm;
  if (config.qkv_bias) vectors += q + 2 * k;
  if (config.attention_output_bias) vectors += d;
  if (config.mlp_bias) vectors += (gated ? 2 * f : f) + d;
  cost.block.weight_bytes = matrix_bytes(type, q + 2 * k, d) + matrix_bytes(type, d, q) +
                            matrix_bytes(type, gated ? 2 * f : f, d) + matrix_bytes(type, d, f) +
                            vectors * sizeof(float);
  cost.block.flops = 2.0 * static_cast<double>(d) * static_cast<double>(2 * q + 2 * k + (gated ? 3 : 2) * f);
  cost.attention_flops = 4.0 * static_cast<double>(q);

  const std::uint64_t table = matrix_bytes(type, vocab, d);
  cost.embedding.weight_bytes = table;
  if (config.position == PositionKind::kLearned) {
    cost.embedding.weight_bytes += matrix_bytes(type, static_cast<std::uint64_t>(config.context), d);
  }
  cost.head.weight_bytes = table + norm * sizeof(float);
  cost.head.flops = 2.0 * static_cast<double>(vocab) * static_cast<double>(d);
  cost.tied_bytes = config.tied_head ? table : 0;

  const auto row = row_bytes(kv_type, static_cast<std::uint64_t>(config.head_dim));
  if (!row) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a {} cache cannot hold heads of {} elements, they are no whole blocks", to_string(kv_type),
                      config.head_dim);
  }
  cost.kv_bytes = 2 * static_cast<std::uint64_t>(config.kv_heads) * *row;
  return cost;
}

double block_decode_s(const ModelCost& cost, const Load& load, const NodeDescriptor& node) {
  const auto sequences = static_cast<double>(load.sequences);
  const double past = static_cast<double>(load.context) / 2.0;
  const double bytes =
      static_cast<double>(cost.block.weight_bytes) + sequences * past * static_cast<double>(cost.kv_bytes);
  const double flops = sequences * (cost.block.flops + past * cost.attention_flops);
  return seconds(bytes, flops, cost.weight_type, node);
}

double embedding_decode_s(const ModelCost&, const Load& load, const NodeDescriptor& node) {
  // One row per sequence: a random read that no prefetcher foresees, one cache line at least.
  return seconds(64.0 * static_cast<double>(load.sequences), 0.0, DType::kF32, node);
}

double head_decode_s(const ModelCost& cost, const Load& load, const NodeDescriptor& node) {
  return seconds(static_cast<double>(cost.head.weight_bytes), static_cast<double>(load.sequences) * cost.head.flops,
                 cost.weight_type, node);
}

}  // namespace butterfly
