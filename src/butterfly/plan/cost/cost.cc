#include "butterfly/plan/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "butterfly/base/check.h"
#include "butterfly/kernel/packed/packed_matrix.h"
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
  return rows * packed_row_bytes(type, cols);
}

/// Of some of a matrix's columns: where a border lies within a super-block their rows are packed as their computing
/// type.
std::uint64_t column_bytes(DType type, std::uint64_t rows, std::uint64_t cols, bool whole_super_blocks) {
  return matrix_bytes(whole_super_blocks ? type : computing_type(type), rows, cols);
}

bool has_whole_super_blocks(const IndexRange& range) {
  return range.begin % kSuperBlock == 0 && range.end % kSuperBlock == 0;
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
  bool whole_mixed = true;  // whether borders lie between super-blocks
  bool whole_f = true;
  bool whole_shared = true;
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
          .shared = static_cast<std::uint64_t>(shard.shared_ff.size()),
          .whole_mixed = has_whole_super_blocks(shard.mixed()),
          .whole_f = has_whole_super_blocks(shard.ff),
          .whole_shared = has_whole_super_blocks(shard.shared_ff)};
}

/// What an MLP of this width stores, computes and moves.
PartCost mlp_of_width(const ModelConfig& config, std::uint64_t f, bool bias, bool whole_columns = true) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const std::uint64_t inputs = config.mlp == MlpKind::kGated ? 2 : 1;  // matrices before the activation
  PartCost cost;
  cost.weight_bytes =
      matrix_bytes(config.weight_type, inputs * f, d) + column_bytes(config.weight_type, d, f, whole_columns);
  if (bias) cost.weight_bytes += (inputs * f + d) * sizeof(float);
  cost.flops = 2.0 * static_cast<double>(d) * static_cast<double>((inputs + 1) * f);
  cost.moved_bytes = kMovedInMemory * sizeof(float) * static_cast<double>((inputs == 2 ? 6 : 4) * f);
  return cost;
}

/// The MLP of a block, but for experts: dense, or what every member has where there are experts, and the shared one.
PartCost mlp_cost(const ModelConfig& config, const Widths& own, bool dense) {
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0 || dense) return mlp_of_width(config, own.f, config.mlp_bias, own.whole_f);
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const auto experts = static_cast<std::uint64_t>(moe.experts);
  PartCost cost = mlp_of_width(config, own.shared, false, own.whole_shared);
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
  const auto matrix = [&](std::uint64_t rows, std::uint64_t cols, bool whole_columns = true) {
    cost.weight_bytes += column_bytes(config.weight_type, rows, cols, whole_columns);
    cost.weights += static_cast<double>(rows) * static_cast<double>(cols);
  };
  if (config.attention_output_bias) cost.vectors += d;
  if (config.attention_sinks) cost.vectors += own.heads;
  if (own.heads > 0) {
    cost.vectors += static_cast<std::uint64_t>(config.relative.buckets) * static_cast<std::uint64_t>(config.heads);
  }
  matrix(d, own.mixed, own.whole_mixed);
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

/// What layers that attend to an encoded text have besides: no relative positions, no norms of queries and keys.
void add_cross_attention(const ModelConfig& config, const Widths& own, ShareCost& cost) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const auto part = [&](std::uint64_t rows, bool bias) {
    PartCost made{.weight_bytes = matrix_bytes(config.weight_type, rows, d)};
    if (bias) made.weight_bytes += rows * sizeof(float);
    made.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(d);
    return made;
  };
  PartCost& query = cost.encoded_query;
  query = part(own.q, config.qkv_bias);
  query.weight_bytes += column_bytes(config.weight_type, d, own.mixed, own.whole_mixed);
  if (config.attention_output_bias) query.weight_bytes += d * sizeof(float);
  query.weight_bytes += (config.norm_bias ? 2 * d : d) * sizeof(float);
  query.flops += 2.0 * static_cast<double>(d) * static_cast<double>(own.mixed);
  query.moved_bytes = kMovedInMemory * sizeof(float) * static_cast<double>(5 * d + 5 * own.q);
  cost.encoded_keys = part(2 * own.k, config.qkv_bias);
  cost.encoded_keys.moved_bytes = kMovedInMemory * sizeof(float) * static_cast<double>(6 * own.k);
}

/// Without experts.
ShareCost share_cost(const ModelConfig& config, const Widths& own, std::uint64_t kv_head_bytes, int subtrees) {
  const auto d = static_cast<std::uint64_t>(config.model_dim);
  const std::uint64_t norm = config.norm_bias ? 2 * d : d;

  ShareCost cost;
  const AttentionCost attention = attention_cost(config, own);
  const std::uint64_t vectors = norms_of_block(config) * norm + attention.vectors;
  const auto block = [&](bool dense) {
    PartCost part = mlp_cost(config, own, dense);
    part.weight_bytes += attention.weight_bytes + vectors * sizeof(float);
    part.flops += 2.0 * attention.weights;
    part.moved_bytes += kMovedInMemory * sizeof(float) * static_cast<double>(10 * d + 5 * own.q + 6 * own.k);
    return part;
  };
  cost.block = block(false);
  cost.dense_block = block(true);
  if (config.has_decoder()) add_cross_attention(config, own, cost);
  cost.attention_flops = 2.0 * attention.past;
  cost.kv_bytes = own.kv_heads * kv_head_bytes;

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

/// Each number of blocks of each kind that a run of layers can have, by the number of layers.
std::vector<BlockCounts> all_counts(const ModelCost& cost) {
  std::vector<BlockCounts> all;
  for (int layers = 1; layers <= cost.layers(); ++layers) {
    const auto begin = static_cast<std::ptrdiff_t>(all.size());
    for (int first = 0; first + layers <= cost.layers(); ++first) {
      all.push_back(cost.counts(first, first + layers));
      if (cost.equal_blocks()) break;
    }
    std::sort(all.begin() + begin, all.end());
    all.erase(std::unique(all.begin() + begin, all.end()), all.end());
  }
  return all;
}

BlockKind kind_of(const ModelConfig& config, int layer) {
  const LayerRole role = config.is_encoder(layer)            ? LayerRole::kEncodes
                         : config.has_cross_attention(layer) ? LayerRole::kAttendsToEncoded
                                                             : LayerRole::kContinues;
  return {
      .dense = config.moe.experts > 0 && !config.has_experts(layer), .role = role, .window = config.window_of(layer)};
}

/// Every kind that there is; of too many, those with the narrowest window become the next wider one.
std::vector<BlockKind> kinds_of(const ModelConfig& config) {
  std::set<BlockKind> kinds;
  for (int layer = 0; layer < config.layers; ++layer) kinds.insert(kind_of(config, layer));
  const auto width = [](const BlockKind& kind) {
    return kind.window > 0 ? kind.window : std::numeric_limits<int>::max();
  };
  while (kinds.size() > kBlockKindsMax) {
    auto narrow = *std::ranges::min_element(kinds, {}, width);
    kinds.erase(narrow);
    const bool wider = std::ranges::any_of(
        kinds, [&](const BlockKind& kind) { return kind.dense == narrow.dense && kind.role == narrow.role; });
    narrow.window = 0;
    if (!wider) kinds.insert(narrow);
  }
  return {kinds.begin(), kinds.end()};
}

/// The one that counts for this: itself, or with the next wider window.
std::size_t counted_as(const std::vector<BlockKind>& kinds, const BlockKind& kind) {
  const auto same = [&](const BlockKind& one) { return one.dense == kind.dense && one.role == kind.role; };
  std::size_t best = kinds.size();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == kind) return i;
    if (!same(kinds[i]) || (kinds[i].window != 0 && kinds[i].window < kind.window)) continue;
    const bool narrower = best < kinds.size() && kinds[i].window != 0 &&
                          (kinds[best].window == 0 || kinds[i].window < kinds[best].window);
    if (best == kinds.size() || narrower) best = i;
  }
  BF_CHECK(best < kinds.size(), "every layer has a kind");
  return best;
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
  cost.kinds = kinds_of(config);
  BlockCounts counts;
  cost.before.push_back(counts);
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::size_t kind = counted_as(cost.kinds, kind_of(config, layer));
    cost.kind_of.push_back(static_cast<std::uint8_t>(kind));
    ++counts.of[kind];
    if (layer > 0 && config.weight_layer(layer) == config.weight_layer(layer - 1)) ++counts.shared;
    cost.before.push_back(counts);
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
  cost.kv_type = kv_type;
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

BlockCounts ModelCost::counts(int first_layer, int last_layer) const {
  if (last_layer <= first_layer) return {};
  const auto first = static_cast<std::size_t>(first_layer);
  BlockCounts counts = before[static_cast<std::size_t>(last_layer)];
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) counts.of[kind] -= before[first].of[kind];
  counts.shared -= before[first + 1].shared;  // the first of a run has nothing to share with
  return counts;
}

std::size_t ModelCost::run_index(const BlockCounts& blocks) const {
  const auto place = std::ranges::lower_bound(counts_of_runs, std::pair(blocks.total(), blocks), {},
                                              [](const BlockCounts& one) { return std::pair(one.total(), one); });
  BF_CHECK(place != counts_of_runs.end() && *place == blocks, "the layers are a run of the model's");
  return static_cast<std::size_t>(place - counts_of_runs.begin());
}

std::uint64_t ModelCost::weight_bytes(const ShareCost& own, const BlockCounts& blocks) const {
  std::uint64_t bytes = 0;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    bytes += static_cast<std::uint64_t>(blocks.of[kind]) * own.stored_bytes(kinds[kind]);
  }
  // Layers that share weights are all of one kind.
  return bytes - static_cast<std::uint64_t>(blocks.shared) * own.stored_bytes(kinds.front());
}

ShareBytes share_bytes(const ModelCost& cost, const StageAssignment& work, const Load& load) {
  const ShareCost own = cost.share(work.slices);
  const BlockCounts blocks = cost.counts(work);
  ShareBytes bytes;
  bytes.weights = cost.weight_bytes(own, blocks);
  if (work.embedding) bytes.weights += own.embedding.weight_bytes;
  if (work.head) bytes.weights += own.head.weight_bytes;
  if (work.embedding && work.head) bytes.weights -= own.tied_bytes;
  for (std::size_t kind = 0; kind < cost.kinds.size(); ++kind) {
    const auto layers = static_cast<std::uint64_t>(blocks.of[kind]);
    bytes.kv += layers * own.cached_bytes_of(cost.kinds[kind]) * load.cached_positions();
  }
  bytes.activations = std::max(std::min(load.chunk, load.prompt), load.sequences) * cost.workspace_bytes;
  if (work.head) bytes.activations += load.sequences * own.logit_bytes;
  return bytes;
}

}  // namespace butterfly
