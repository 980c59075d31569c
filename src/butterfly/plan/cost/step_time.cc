// How long nodes take for steps: what cost.h says of times.
#include <algorithm>
#include <cmath>
#include <limits>

#include "butterfly/model/inference/kv_cache.h"
#include "butterfly/plan/cost/cost.h"

namespace butterfly {
namespace {

/// A rate of 0 is unknown: whatever needs it takes forever.
double time(double amount, double per_s) {
  if (amount <= 0.0) return 0.0;
  return per_s > 0.0 ? amount / per_s : std::numeric_limits<double>::infinity();
}

/// Matrices of `bytes` that each row of `rows` is multiplied with.
double matmul_s(double bytes, double flops, double rows, const NodeRates& rates) {
  const double first = std::min(rows, kRowsWhileReading);
  return std::hypot(time(bytes, rates.weight_bytes_per_s), time(first * flops, rates.flops_per_s)) +
         time((rows - first) * flops, rates.flops_per_s);
}

/// The matrices of a part without experts, multiplied with `rows` rows.
double dense_matmul_s(const PartCost& part, double rows, const NodeRates& rates) {
  const ExpertCost& experts = part.experts;
  return matmul_s(static_cast<double>(part.weight_bytes) - experts.held * experts.bytes,
                  part.flops - experts.held * experts.share * experts.flops, rows, rates);
}

double expert_matmul_s(const ExpertCost& experts, double rows, const NodeRates& rates) {
  const double touched = experts.touched(rows);
  if (touched <= 0.0) return 0.0;
  // Each of them sees some of the rows, one at least.
  const double rows_each = rows * experts.share * experts.held / touched;
  return matmul_s(touched * experts.bytes, touched * experts.flops, rows_each, rates);
}

/// The type whose measured matmuls say most about those of `type`: of the same kind of packed weights.
DType measured_type(DType type) {
  const DType computing = computing_type(type);
  if (static_cast<int>(computing) <= static_cast<int>(DType::kQ4_0) || type == DType::kInt8) return computing;
  return computing == DType::kBytes16 || computing == DType::kBytes32Min ? DType::kQ8_0 : DType::kQ4_0;
}

/// Where attention over this type was not measured, as many positions per second are assumed as of halves: the rate in
/// bytes changes with their size.
double bytes_beside_halves(DType kv_type) {
  constexpr std::uint64_t kElements = 64;
  return static_cast<double>(cached_bytes(kv_type, kElements)) /
         static_cast<double>(cached_bytes(DType::kF16, kElements));
}

/// Bytes per second that one row passes where the whole model has `weight_bytes`.
double weight_rate(const MatmulRate& matmul, double weight_bytes) {
  const double beyond = matmul.decode_gb_per_s * 1e9;
  const double within = std::max(matmul.cached_gb_per_s * 1e9, beyond);
  const double reach = std::log(kUncachedWeights / std::max(weight_bytes, kCachedWeights));
  const double share = std::clamp(reach / std::log(kUncachedWeights / kCachedWeights), 0.0, 1.0);
  return beyond * std::pow(within / beyond, share);
}

}  // namespace

std::string_view attention_rate(DType kv_type) {
  if (kv_type == DType::kF32) return kAttentionF32;
  return kv_type == DType::kQ8_0 ? kAttentionQ8_0 : kAttention;
}

NodeRates node_rates(const NodeDescriptor& node, DType weight_type, double weight_bytes, DType kv_type) {
  const bool quantised = block_elements(weight_type) > 1;
  const double gflops = quantised && node.int8_gops > 0.0 ? node.int8_gops : node.fp32_gflops;
  NodeRates rates{.weight_bytes_per_s = kAssumedMemoryShare * node.memory_read_gb_per_s * 1e9,
                  .memory_bytes_per_s = kAssumedMemoryShare * node.memory_read_gb_per_s * 1e9,
                  .flops_per_s = kAssumedArithmeticShare * gflops * 1e9,
                  .kv_bytes_per_s = kAssumedMemoryShare * node.memory_read_gb_per_s * 1e9,
                  .attention_flops_per_s = kAssumedArithmeticShare * node.fp32_gflops * 1e9,
                  .dispatch_s = node.dispatch_us * 1e-6,
                  .wake_s = node.wake_us * 1e-6};
  const bool described = std::ranges::any_of(
      node.matmuls, [&](const MatmulRate& matmul) { return matmul.type == to_string(weight_type); });
  const DType type = described ? weight_type : measured_type(weight_type);
  bool own_attention = false;
  for (const MatmulRate& matmul : node.matmuls) {
    if (matmul.decode_gb_per_s <= 0.0 || matmul.prefill_gflops <= 0.0) continue;
    const bool of_cache = matmul.type == attention_rate(kv_type);
    if (of_cache || (matmul.type == kAttention && !own_attention)) {
      rates.kv_bytes_per_s = matmul.decode_gb_per_s * 1e9 * (of_cache ? 1.0 : bytes_beside_halves(kv_type));
      rates.attention_flops_per_s = matmul.prefill_gflops * 1e9;
      own_attention = of_cache;
    } else if (matmul.type == to_string(type)) {
      rates.weight_bytes_per_s = weight_rate(matmul, weight_bytes);
      rates.flops_per_s = matmul.prefill_gflops * 1e9;
      rates.measured = computing_type(weight_type) == type;
    }
  }
  // Where only matmuls were described, the rest is assumed to be no faster than they are.
  if (rates.memory_bytes_per_s <= 0.0) rates.memory_bytes_per_s = rates.weight_bytes_per_s;
  if (rates.kv_bytes_per_s <= 0.0) rates.kv_bytes_per_s = rates.memory_bytes_per_s;
  if (rates.attention_flops_per_s <= 0.0) rates.attention_flops_per_s = rates.flops_per_s;
  return rates;
}

RequestKind request_kind(const ModelConfig& config) {
  if (config.encodes_only()) return RequestKind::kEncoded;
  return config.has_decoder() ? RequestKind::kAnswered : RequestKind::kContinued;
}

namespace {

/// Texts that are encoded together.
StepShape encoding_shape(const Load& load, double texts) {
  const auto text = static_cast<double>(load.prompt);
  return {.rows = texts * text,
          .sequences = texts,
          .logit_rows = load.requests == RequestKind::kEncoded ? texts : 0.0,
          .kind = StepKind::kEncodes,
          .text = text};
}

}  // namespace

StepShape decode_shape(const Load& load) {
  const auto sequences = static_cast<double>(load.sequences);
  if (load.requests == RequestKind::kEncoded) return encoding_shape(load, sequences);
  StepShape step{.rows = sequences,
                 .past = static_cast<double>(load.context) / 2.0,
                 .sequences = sequences,
                 .logit_rows = sequences};
  if (load.requests == RequestKind::kAnswered) {
    step.text = static_cast<double>(load.prompt);
    step.encodings = 1.0 / step.text;
  }
  return step;
}

StepShape token_shape(const Load& load) {
  Load alone = load;
  alone.sequences = 1;
  StepShape step = decode_shape(alone);
  step.encodings = 0.0;
  return step;
}

StepShape prefill_shape(const Load& load, std::uint64_t begin) {
  if (load.requests != RequestKind::kContinued) return encoding_shape(load, 1.0);
  const std::uint64_t rows = std::min(load.chunk, load.prompt - begin);
  return {.rows = static_cast<double>(rows),
          .past = static_cast<double>(begin) + static_cast<double>(rows) / 2.0,
          .sequences = 1.0,
          .logit_rows = begin + rows == load.prompt ? 1.0 : 0.0};
}

std::vector<StepShape> prompt_shapes(const Load& load) {
  std::vector<StepShape> steps;
  if (load.requests == RequestKind::kContinued) {
    for (std::uint64_t begin = 0; begin < load.prompt; begin += load.chunk) steps.push_back(prefill_shape(load, begin));
    return steps;
  }
  steps.push_back(prefill_shape(load, 0));
  if (load.requests == RequestKind::kAnswered) {
    StepShape first = token_shape(load);
    first.past = 0.5;  // as a chunk of one row
    steps.push_back(first);
  }
  return steps;
}

namespace {

/// The mean of min(x, limit) where x is spread evenly over [from, to].
double mean_below(double from, double to, double limit) {
  if (to <= limit) return (from + to) / 2.0;
  if (from >= limit) return limit;
  return ((limit - from) * (from + limit) / 2.0 + (to - limit) * limit) / (to - from);
}

/// Positions that a row sees at the mean, and those of a sequence that its rows read together.
struct Seen {
  double by_row = 0.0;
  double together = 0.0;
};

Seen seen_positions(const StepShape& step, int window) {
  const double rows = step.rows / step.sequences;
  if (step.kind == StepKind::kEncodes) {
    const double aside = static_cast<double>(window / 2);  // a half of a window in either direction
    return {.by_row = window > 0 ? 2.0 * mean_below(0.0, rows, aside) : rows, .together = rows};
  }
  if (window == 0) return {.by_row = step.past, .together = step.past};
  const double begin = std::max(0.0, step.past - rows / 2.0);
  const double seen =
      rows > 1.0 ? mean_below(begin, step.past + rows / 2.0, window) : std::min(step.past, static_cast<double>(window));
  return {.by_row = seen, .together = std::min(step.past, seen + (rows - 1.0) / 2.0)};
}

double attention_s(const ShareCost& cost, const StepShape& step, const Seen& seen, const NodeRates& rates) {
  const double kv = step.sequences * seen.together * static_cast<double>(cost.kv_bytes);
  return std::max(time(kv, rates.kv_bytes_per_s),
                  time(step.rows * seen.by_row * cost.attention_flops, rates.attention_flops_per_s));
}

/// The texts of a step that continues others, as a step that encodes them.
StepShape encoding_of(const StepShape& step) {
  return {.rows = step.sequences * step.text,
          .sequences = step.sequences,
          .logit_rows = 0.0,
          .kind = StepKind::kEncodes,
          .text = step.text};
}

/// A block that has rows to compute.
double working_block_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates, const BlockKind& kind) {
  const PartCost& part = cost.block_of(kind);
  return dense_matmul_s(part, step.rows, rates) + expert_matmul_s(part.experts, step.rows, rates) +
         attention_s(cost, step, seen_positions(step, kind.window), rates) +
         time(step.rows * part.moved_bytes, rates.memory_bytes_per_s) + kDispatchesOfBlock * rates.dispatch_s;
}

/// Keys and values of rows that an encoder gave.
double encoded_keys_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates) {
  return dense_matmul_s(cost.encoded_keys, step.rows, rates) +
         time(step.rows * cost.encoded_keys.moved_bytes, rates.memory_bytes_per_s) + rates.dispatch_s;
}

double attending_block_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates, const BlockKind& kind) {
  return working_block_s(cost, step, rates, kind) + dense_matmul_s(cost.encoded_query, step.rows, rates) +
         attention_s(cost, step, {.by_row = step.text, .together = step.text}, rates) +
         time(step.rows * cost.encoded_query.moved_bytes, rates.memory_bytes_per_s) +
         kDispatchesOfEncoded * rates.dispatch_s;
}

}  // namespace

double experts_s(const ExpertCost& experts, double moved_bytes, const StepShape& step, const NodeRates& rates,
                 const BlockKind& kind) {
  const auto of_rows = [&](double rows) {
    return expert_matmul_s(experts, rows, rates) + time(rows * moved_bytes, rates.memory_bytes_per_s);
  };
  if (kind.role == LayerRole::kContinues || (kind.role == LayerRole::kEncodes) == (step.kind == StepKind::kEncodes)) {
    return of_rows(step.rows);
  }
  if (kind.role == LayerRole::kAttendsToEncoded || step.encodings == 0.0) return 0.0;
  return step.encodings * of_rows(encoding_of(step).rows);
}

double block_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates, const BlockKind& kind) {
  const bool encodes = step.kind == StepKind::kEncodes;
  const bool charged = !encodes && step.encodings > 0.0;
  switch (kind.role) {
    case LayerRole::kEncodes:
      if (encodes) return working_block_s(cost, step, rates, kind);
      return charged ? step.encodings * working_block_s(cost, encoding_of(step), rates, kind) : 0.0;
    case LayerRole::kAttendsToEncoded:
      if (encodes) return encoded_keys_s(cost, step, rates);
      return attending_block_s(cost, step, rates, kind) +
             (charged ? step.encodings * encoded_keys_s(cost, encoding_of(step), rates) : 0.0);
    case LayerRole::kContinues:
      break;
  }
  return working_block_s(cost, step, rates, kind);
}

double blocks_s(const ModelCost& model, const ShareCost& cost, const BlockCounts& blocks, const StepShape& step,
                const NodeRates& rates) {
  double seconds = 0.0;
  for (std::size_t kind = 0; kind < model.kinds.size(); ++kind) {
    if (blocks.of[kind] > 0) seconds += blocks.of[kind] * block_s(cost, step, rates, model.kinds[kind]);
  }
  return seconds;
}

double embedding_s(const StepShape& step, const NodeRates& rates) {
  // One row per position: a random read that no prefetcher foresees, one cache line at least.
  return time(64.0 * step.rows, rates.memory_bytes_per_s);
}

double head_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates) {
  if (step.logit_rows <= 0.0) return 0.0;
  return dense_matmul_s(cost.head, step.logit_rows, rates) + rates.dispatch_s;
}

double share_s(const ModelCost& cost, const StageAssignment& work, const StepShape& step, const NodeRates& rates) {
  const ShareCost own = cost.share(work.slices);
  double seconds = blocks_s(cost, own, cost.counts(work), step, rates);
  if (work.embedding) seconds += embedding_s(step, rates);
  if (work.head) seconds += head_s(own, step, rates);
  return seconds;
}

}  // namespace butterfly
