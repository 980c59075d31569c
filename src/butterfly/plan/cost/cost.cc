#include "butterfly/plan/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "butterfly/model/core/shard.h"
#include "butterfly/model/inference/kv_cache.h"

namespace butterfly {
namespace {

/// The part of what moves between matmuls that comes from memory: it is read soon after it was written, and found in a
/// cache.
constexpr double kMovedInMemory = 0.5;

/// As it is held in memory. Rows that are no whole number of blocks cannot be quantised: files keep those matrices in
/// f32.
std::uint64_t matrix_bytes(DType type, std::uint64_t rows, std::uint64_t cols) {
  return rows * row_bytes(computing_type(type), cols).value_or(cols * sizeof(float));
}

/// Elements of each divided dimension that a run of slices has.
struct Widths {
  std::uint64_t q = 0;
  std::uint64_t k = 0;
  std::uint64_t q_rows = 0;  // of the matrix: more than q where a norm needs all
  std::uint64_t k_rows = 0;
  std::uint64_t mixed = 0;  // what attention gives
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t f = 0;
  std::uint64_t vocab = 0;
  std::uint64_t shared = 0;
};

Widths widths_of(const ModelConfig& config, const SliceRange& slices) {
  const Shard shard = shard_of(config, slices);
  return {.q = static_cast<std::uint64_t>(shard.q_dim()),
          .k = static_cast<std::uint64_t>(shard.kv_dim()),
          .q_rows = static_cast<std::uint64_t>(shard.q_rows.size()),
          .k_rows = static_cast<std::uint64_t>(shard.k_rows.size()),
          .mixed = static_cast<std::uint64_t>(shard.mixed_dim()),
          .heads = static_cast<std::uint64_t>(shard.heads.size()),
          .kv_heads = static_cast<std::uint64_t>(shard.kv_heads.size()),
          .f = static_cast<std::uint64_t>(shard.ff.size()),
          .vocab = static_cast<std::uint64_t>(shard.vocab.size()),
          .shared = static_cast<std::uint64_t>(shard.shared_ff.size())};
}

/// What an MLP of this width stores, computes and moves.
PartCost mlp_of_width(const ModelConfig& config, std::uint64_t f, bool bias) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const std::uint64_t inputs = config.mlp == MlpKind::kGated ? 2 : 1;  // matrices before the activation
  PartCost cost;
  cost.weight_bytes = matrix_bytes(config.weight_type, inputs * f, d) + matrix_bytes(config.weight_type, d, f);
  if (bias) cost.weight_bytes += (inputs * f + d) * sizeof(float);
  cost.flops = 2.0 * static_cast<double>(d) * static_cast<double>((inputs + 1) * f);
  cost.moved_bytes = kMovedInMemory * sizeof(float) * static_cast<double>((inputs == 2 ? 6 : 4) * f);
  return cost;
}

/// The MLP of a block, but for experts: dense, or what every member has where there are experts, and the shared one.
PartCost mlp_cost(const ModelConfig& config, const Widths& own, BlockKind kind) {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0 || kind == BlockKind::kDense) return mlp_of_width(config, own.f, config.mlp_bias);
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const auto experts = static_cast<std::uint64_t>(moe.experts);
  PartCost cost = mlp_of_width(config, own.shared, false);
  cost.weight_bytes += experts * d * sizeof(float);
  if (moe.router_bias) cost.weight_bytes += experts * sizeof(float);
  if (moe.choice_bias) cost.weight_bytes += experts * sizeof(float);
  if (moe.shared_gate) cost.weight_bytes += d * sizeof(float);
  cost.flops += 2.0 * static_cast<double>(experts * d);
  return cost;
}

HeldExpertsCost held_experts(const ModelConfig& config, const SliceRange& slices) {
  const MoeConfig& moe = config.moe;
  HeldExpertsCost cost{.subtrees = subtree_count(slices)};
  if (moe.experts == 0) return cost;
  const auto held = static_cast<double>(shard_of(config, slices).experts.size());
  const PartCost one = mlp_of_width(config, static_cast<std::uint64_t>(moe.ff_dim), moe.expert_bias);
  const double chosen = held * moe.experts_used / moe.experts;
  cost.weight_bytes = static_cast<std::uint64_t>(held) * one.weight_bytes;
  cost.flops = chosen * one.flops;
  // A chosen row is copied to its expert's and its result added up.
  cost.moved_bytes =
      chosen * (one.moved_bytes + kMovedInMemory * sizeof(float) * static_cast<double>(5 * config.model_dim));
  cost.experts = {.held = held,
                  .share = static_cast<double>(moe.experts_used) / moe.experts,
                  .bytes = static_cast<double>(one.weight_bytes),
                  .flops = one.flops};
  return cost;
}

/// Attention's own part of a block, beside the block's norms.
struct AttentionCost {
  std::uint64_t weight_bytes = 0;  // of matrices
  std::uint64_t vectors = 0;       // elements of norms, biases and sinks
  double weights = 0.0;            // elements of matrices
  double past = 0.0;               // multiply-adds for each earlier position
};

AttentionCost attention_cost(const ModelConfig& config, const Widths& own) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  AttentionCost cost;
  const auto matrix = [&](std::uint64_t rows, std::uint64_t cols) {
    cost.weight_bytes += matrix_bytes(config.weight_type, rows, cols);
    cost.weights += static_cast<double>(rows) * static_cast<double>(cols);
  };
  if (config.attention_output_bias) cost.vectors += d;
  if (config.attention_sinks) cost.vectors += own.heads;
  if (own.heads > 0) {
    cost.vectors += static_cast<std::uint64_t>(config.relative.buckets) * static_cast<std::uint64_t>(config.heads);
  }
  matrix(d, own.mixed);
  if (!config.has_latent()) {
    matrix(own.q_rows + own.k_rows + own.k, d);
    cost.past = 2.0 * static_cast<double>(own.q);
    if (config.qk_norm == QkNorm::kHead) cost.vectors += 2 * static_cast<std::uint64_t>(config.head_dim);
    if (config.qk_norm == QkNorm::kWidth) cost.vectors += static_cast<std::uint64_t>(config.q_dim() + config.kv_dim());
    if (config.qkv_bias) cost.vectors += own.q_rows + own.k_rows + own.k;
    return cost;
  }
  const auto latent = static_cast<std::uint64_t>(config.latent.dim);
  const auto rank = static_cast<std::uint64_t>(config.latent.query_rank);
  const auto plain = static_cast<std::uint64_t>(config.head_dim - config.rope.dim);
  if (rank > 0 && own.heads > 0) matrix(rank, d);
  matrix(own.q_rows, rank > 0 ? rank : d);
  matrix(own.k_rows, d);
  matrix(own.heads * latent, plain);
  matrix(own.mixed, latent);
  cost.vectors += rank + latent;
  cost.past = static_cast<double>(own.heads) * static_cast<double>(own.k_rows + latent);
  return cost;
}

std::uint64_t norms_of_block(const ModelConfig& config) {
  if (config.norm_place == NormPlace::kBoth) return 4;
  return config.shared_norm ? 1 : 2;
}

/// What the embedding and the head store and compute.
void add_ends(const ModelConfig& config, const Widths& own, ShareCost& cost) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const auto width = static_cast<std::uint64_t>(config.table_dim());
  const std::uint64_t norm = config.norm_bias ? 2 * d : d;
  const DType type = config.weight_type;
  const std::uint64_t table = matrix_bytes(type, own.vocab, width);
  cost.embedding.weight_bytes = table;
  if (config.position == PositionKind::kLearned) {
    cost.embedding.weight_bytes += matrix_bytes(type, static_cast<std::uint64_t>(config.context), width);
  }
  const std::uint64_t table_norm = config.norm_bias ? 2 * width : width;
  std::uint64_t embedding_vectors = static_cast<std::uint64_t>(config.token_types) * width;
  if (config.embedding_norm) embedding_vectors += table_norm;
  if (config.embedding_dim > 0) {
    cost.embedding.weight_bytes += matrix_bytes(type, d, width);
    embedding_vectors += d;
  }
  cost.embedding.weight_bytes += embedding_vectors * sizeof(float);
  std::uint64_t head_vectors = config.norm_place != NormPlace::kAfter ? norm : 0;
  cost.logit_bytes = d * sizeof(float);
  if (config.output == OutputKind::kLogits) {
    cost.head.weight_bytes = table;
    cost.head.flops = 2.0 * static_cast<double>(own.vocab * width);
    cost.tied_bytes = config.tied_head ? table : 0;
    cost.logit_bytes = own.vocab * sizeof(float);
    if (config.head_bias) head_vectors += own.vocab;
    if (config.head_transform) {
      cost.head.weight_bytes += matrix_bytes(type, width, d);
      cost.head.flops += 2.0 * static_cast<double>(width * d);
      head_vectors += table_norm + (config.head_transform_bias ? width : 0);
    }
  }
  cost.head.weight_bytes += head_vectors * sizeof(float);
}

/// Without experts.
ShareCost share_cost(const ModelConfig& config, const Widths& own, std::uint64_t kv_head_bytes, int subtrees) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const std::uint64_t norm = config.norm_bias ? 2 * d : d;

  ShareCost cost;
  const AttentionCost attention = attention_cost(config, own);
  const std::uint64_t vectors = norms_of_block(config) * norm + attention.vectors;
  const auto block = [&](BlockKind kind) {
    PartCost part = mlp_cost(config, own, kind);
    part.weight_bytes += attention.weight_bytes + vectors * sizeof(float);
    part.flops += 2.0 * attention.weights;
    part.moved_bytes += kMovedInMemory * sizeof(float) * static_cast<double>(10 * d + 5 * own.q + 6 * own.k);
    if (!config.has_decoder()) return part;
    part.weight_bytes += attention.weight_bytes + norm * sizeof(float);
    part.flops += attention.weights;  // of a decoder's rows queries and output; keys and values once a text
    return part;
  };
  cost.block = block(BlockKind::kMain);
  cost.dense_block = block(BlockKind::kDense);
  cost.attention_flops = 2.0 * attention.past;
  cost.kv_bytes = own.kv_heads * kv_head_bytes;
  if (config.has_decoder()) {
    cost.attention_flops *= 2.0;
    cost.kv_bytes *= 2;
  }

  add_ends(config, own, cost);
  cost.subtrees = subtrees;
  return cost;
}

/// Floats of attention's intermediate results for each row.
std::uint64_t attention_workspace(const ModelConfig& config) {
  const auto q = static_cast<std::uint64_t>(config.q_dim());
  if (!config.has_latent()) return 2 * q + 2 * static_cast<std::uint64_t>(config.kv_dim());
  const auto key = static_cast<std::uint64_t>(config.cached_key_dim());
  const auto latent = static_cast<std::uint64_t>(config.latent.dim);
  // Queries as they come, as they are taken apart, and as they meet the cache; mixed latents and values.
  const auto heads = static_cast<std::uint64_t>(config.heads);
  return 2 * q + key + heads * (key + latent) + static_cast<std::uint64_t>(config.mixed_dim());
}

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

/// Each number of blocks of each kind that a run of layers can have.
std::vector<BlockCounts> all_counts(const ModelCost& cost) {
  std::vector<BlockCounts> all;
  for (int first = 0; first < cost.layers(); ++first) {
    for (int last = first + 1; last <= cost.layers(); ++last) all.push_back(cost.counts(first, last));
    if (cost.equal_blocks()) break;
  }
  std::ranges::sort(all, {}, [](const BlockCounts& one) { return std::pair(one.total(), one.main); });
  const auto twice = std::ranges::unique(all);
  all.erase(twice.begin(), twice.end());
  return all;
}

void add_slices(const ModelConfig& config, std::uint64_t kv_head_bytes, ModelCost& cost) {
  cost.of_slices.resize(ModelCost::kRuns);
  cost.of_experts.resize(ModelCost::kRuns);
  const auto add = [&](const SliceRange& slices) {
    const std::size_t run = ModelCost::run(slices);
    cost.of_slices[run] = share_cost(config, widths_of(config, slices), kv_head_bytes, subtree_count(slices));
    cost.of_experts[run] = held_experts(config, slices);
  };
  for (int first = 0; first < kReductionSlices; ++first) {
    for (int last = first + 1; last <= kReductionSlices; ++last) add({.first = first, .last = last});
  }
  add({.first = 0, .last = 0});
  static_cast<ShareCost&>(cost) = cost.share({});
}

void add_layers(const ModelConfig& config, ModelCost& cost) {
  cost.main_before.push_back(0);
  for (int layer = 0; layer < config.layers; ++layer) {
    const bool main = config.moe.experts == 0 || config.has_experts(layer);
    cost.main_before.push_back(cost.main_before.back() + (main ? 1 : 0));
  }
  cost.counts_of_runs = all_counts(cost);
  if (config.moe.experts == 0) return;
  const SliceBorders experts = expert_slices(config);
  for (int slice = 0; slice <= experts.count(); ++slice) cost.expert_borders.push_back(experts.at(slice));
}

}  // namespace

double ExpertCost::touched(double rows) const {
  return held * (1.0 - std::pow(1.0 - share, rows));
}

Result<ModelCost> model_cost(const ModelConfig& config, DType kv_type) {
  BF_TRY(validate(config));
  if (!is_cache_type(kv_type)) {
    return make_error(ErrorCode::kInvalidArgument, "a cache cannot hold {}, known are f32, f16 and q8_0",
                      to_string(kv_type));
  }
  const std::uint64_t cached = cached_bytes(kv_type, static_cast<std::uint64_t>(config.cached_key_dim())) +
                               cached_bytes(kv_type, static_cast<std::uint64_t>(config.cached_value_dim()));
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const auto f = static_cast<std::uint64_t>(config.ff_dim);
  ModelCost cost;
  add_slices(config, cached, cost);
  add_layers(config, cost);
  cost.weight_type = config.weight_type;
  cost.row_bytes = d * sizeof(float);
  // Residual and norm, then the wider of attention's and the MLP's intermediate results.
  std::uint64_t mlp = (config.mlp == MlpKind::kGated ? 3 : 2) * f;
  if (config.moe.experts > 0) {
    const auto used = static_cast<std::uint64_t>(config.moe.experts_used);
    const auto shared = static_cast<std::uint64_t>(config.moe.shared_ff_dim);
    // Of each chosen expert: its row, its hidden values and its result; the router's scores; the sum.
    mlp = std::max(mlp, used * (2 * d + 3 * static_cast<std::uint64_t>(config.moe.ff_dim)) + 3 * shared + d +
                            2 * static_cast<std::uint64_t>(config.moe.experts));
  }
  cost.workspace_bytes = sizeof(float) * (2 * d + std::max(attention_workspace(config), mlp));
  cost.parameters = parameter_count(config);
  if (config.moe.experts > 0) {
    cost.exchanges_by_slices = config.moe.shared_ff_dim > 0 ? 2.0 : 1.0;
    cost.exchanges_by_experts = 1.0;
  }
  if (config.has_decoder()) cost.exchanges_by_slices += 1.0;
  return cost;
}

ShareCost ModelCost::share(const HeldSlices& held) const {
  ShareCost cost = without_experts(held.slices());
  const HeldExpertsCost& more = experts(held.experts);
  cost.block.weight_bytes += more.weight_bytes;
  cost.block.flops += more.flops;
  cost.block.moved_bytes += more.moved_bytes;
  cost.block.experts = more.experts;
  cost.expert_subtrees = more.subtrees;
  return cost;
}

namespace {

/// The type whose measured matmuls say most about those of `type`: of the same kind of packed weights.
DType measured_type(DType type) {
  const DType computing = computing_type(type);
  if (static_cast<int>(computing) <= static_cast<int>(DType::kQ4_0)) return computing;
  return computing == DType::kBytes16 || computing == DType::kBytes32Min ? DType::kQ8_0 : DType::kQ4_0;
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

NodeRates node_rates(const NodeDescriptor& node, DType weight_type, double weight_bytes) {
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
  for (const MatmulRate& matmul : node.matmuls) {
    if (matmul.decode_gb_per_s <= 0.0 || matmul.prefill_gflops <= 0.0) continue;
    if (matmul.type == kAttention) {
      rates.kv_bytes_per_s = matmul.decode_gb_per_s * 1e9;
      rates.attention_flops_per_s = matmul.prefill_gflops * 1e9;
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

StepShape decode_shape(const Load& load) {
  const auto sequences = static_cast<double>(load.sequences);
  return {.rows = sequences,
          .past = static_cast<double>(load.context) / 2.0,
          .sequences = sequences,
          .logit_rows = sequences};
}

StepShape prefill_shape(const Load& load, std::uint64_t begin) {
  const std::uint64_t rows = std::min(load.chunk, load.prompt - begin);
  return {.rows = static_cast<double>(rows),
          .past = static_cast<double>(begin) + static_cast<double>(rows) / 2.0,
          .sequences = 1.0,
          .logit_rows = begin + rows == load.prompt ? 1.0 : 0.0};
}

double experts_s(const ExpertCost& experts, double moved_bytes, const StepShape& step, const NodeRates& rates) {
  return expert_matmul_s(experts, step.rows, rates) + time(step.rows * moved_bytes, rates.memory_bytes_per_s);
}

double block_s(const ShareCost& cost, const StepShape& step, const NodeRates& rates, BlockKind kind) {
  const PartCost& part = cost.block_of(kind);
  const double kv = step.sequences * step.past * static_cast<double>(cost.kv_bytes);
  const double attention = std::max(time(kv, rates.kv_bytes_per_s),
                                    time(step.rows * step.past * cost.attention_flops, rates.attention_flops_per_s));
  return dense_matmul_s(part, step.rows, rates) + expert_matmul_s(part.experts, step.rows, rates) + attention +
         time(step.rows * part.moved_bytes, rates.memory_bytes_per_s) + kDispatchesOfBlock * rates.dispatch_s;
}

double blocks_s(const ShareCost& cost, const BlockCounts& blocks, const StepShape& step, const NodeRates& rates) {
  double seconds = 0.0;
  if (blocks.main > 0) seconds += blocks.main * block_s(cost, step, rates);
  if (blocks.dense > 0) seconds += blocks.dense * block_s(cost, step, rates, BlockKind::kDense);
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
  double seconds = blocks_s(own, cost.counts(work), step, rates);
  if (work.embedding) seconds += embedding_s(step, rates);
  if (work.head) seconds += head_s(own, step, rates);
  return seconds;
}

ShareBytes share_bytes(const ModelCost& cost, const StageAssignment& work, const Load& load) {
  const ShareCost own = cost.share(work.slices);
  const auto layers = static_cast<std::uint64_t>(work.layers());
  const BlockCounts blocks = cost.counts(work);
  ShareBytes bytes;
  bytes.weights = static_cast<std::uint64_t>(blocks.main) * own.block.weight_bytes +
                  static_cast<std::uint64_t>(blocks.dense) * own.dense_block.weight_bytes;
  if (work.embedding) bytes.weights += own.embedding.weight_bytes;
  if (work.head) bytes.weights += own.head.weight_bytes;
  if (work.embedding && work.head) bytes.weights -= own.tied_bytes;
  bytes.kv = layers * own.kv_bytes * load.context * load.sequences;
  bytes.activations = std::max(std::min(load.chunk, load.prompt), load.sequences) * cost.workspace_bytes;
  if (work.head) bytes.activations += load.sequences * own.logit_bytes;
  return bytes;
}

}  // namespace butterfly
