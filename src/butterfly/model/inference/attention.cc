#include "butterfly/model/inference/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "butterfly/model/core/rotary.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

LayerAttention layer_attention(const ModelConfig& config, int layer, const Shard& shard) {
  LayerAttention result;
  result.sight = config.is_encoder(layer) ? Sight::kText : Sight::kBackwards;
  result.window = config.window_of(layer);
  result.scale =
      config.attention_scale > 0 ? config.attention_scale : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  const int rope = config.rope_of(layer);
  if (rope != kNoRope) {
    result.rope = rope == kMainRope ? config.rope : config.local_rope;
    result.first_pair = rope == kMainRope ? 0 : config.rope.dim / 2;
  }
  if (config.position != PositionKind::kAlibi) return result;
  // Powers of 2^(-max / n) for the largest power of two n of heads; the heads beyond it take the odd powers of its
  // root.
  const auto even = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(config.heads)));
  const double step = static_cast<double>(config.alibi_max_bias) / static_cast<double>(even);
  for (std::int64_t head = shard.heads.begin; head < shard.heads.end; ++head) {
    const double halvings =
        head < even ? step * static_cast<double>(head + 1) : step * (static_cast<double>(head - even) + 0.5);
    result.slopes.push_back(static_cast<float>(exact::exp(-halvings * std::numbers::ln2)));
  }
  return result;
}

Result<float*> norm_queries_or_keys(const Compute& compute, const ModelConfig& config, const QkNormArgs& args,
                                    float* x) {
  const std::int64_t width = args.computed.size();
  const std::int64_t step = config.qk_norm == QkNorm::kHead ? config.head_dim : width;
  const trace::Scope scope(trace::Zone::kNorm, work_on_rows(args.rows, width, 2 * width));
  for_each_row(compute, args.rows, width, [&](std::int64_t row) {
    for (float* at = x + row * width; at < x + (row + 1) * width; at += step) {
      compute.kernels->rms_norm(at, args.weight.data(), config.norm_epsilon, step, at);
    }
  });
  if (args.held.size() == width) return x;
  const std::int64_t kept = args.held.size();
  BF_ASSIGN_OR_RETURN(const auto part,
                      compute.arena->allocate_array<float>(static_cast<std::uint64_t>(args.rows * kept)));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    std::memcpy(part.data() + row * kept, x + row * width + (args.held.begin - args.computed.begin),
                static_cast<std::size_t>(kept) * sizeof(float));
  }
  return part.data();
}

void rotate_head(const Compute& compute, const LayerAttention& layer, const float* cos, const float* sin, float* x) {
  const std::int64_t pairs = layer.rope.dim / 2;
  compute.kernels->rope(x, cos, sin, pairs, layer.rope.pairs == RopePairs::kAdjacent);
  if (layer.rope.magnitude != 1.0f) compute.kernels->scale(layer.rope.magnitude, 2 * pairs, x);
}

void rotate_and_store(const Compute& compute, const ModelConfig& config, const LayerAttention& layer,
                      const Shard& shard, const Batch& batch, const RotaryRows& rotary, int cache_layer, KvCache& cache,
                      const QueryKeyValue& qkv) {
  const auto heads = static_cast<int>(shard.heads.size());
  const auto kv_heads = static_cast<int>(shard.kv_heads.size());
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t pairs = layer.rope.dim / 2;
  const std::int64_t all_pairs = batch.rows() > 0 ? static_cast<std::int64_t>(rotary.cos.size()) / batch.rows() : 0;
  const auto rotate = [&](float* x, int count, const float* cos, const float* sin) {
    for (int head = 0; head < count; ++head, x += head_dim) rotate_head(compute, layer, cos, sin, x);
  };
  // Queries where they are rotated, keys and values; into the cache as its type has them.
  const std::int64_t width = (qkv.q == nullptr ? 0 : shard.q_dim()) + 2 * shard.kv_dim();
  const std::int64_t floats = pairs > 0 ? 2 * shard.q_dim() + 3 * shard.kv_dim() + 2 * pairs : 2 * shard.kv_dim();
  trace::Work work = work_on_rows(batch.rows(), width, floats);
  work.bytes += static_cast<std::uint64_t>(batch.rows()) *
                cached_bytes(cache.options().type, static_cast<std::uint64_t>(2 * shard.kv_dim()));
  const trace::Scope scope(trace::Zone::kRotary, work);
  std::int64_t first_row = 0;
  for (const SequenceRun& run : batch.runs) {
    for_each_row(compute, run.rows, shard.q_dim() + 2 * shard.kv_dim(), [&](std::int64_t i) {
      const std::int64_t row = first_row + i;
      const std::int64_t position = run.position + i;
      float* k = qkv.k + row * shard.kv_dim();
      const float* v = qkv.v + row * shard.kv_dim();
      if (pairs > 0) {
        const float* cos = rotary.cos.data() + row * all_pairs + layer.first_pair;
        const float* sin = rotary.sin.data() + row * all_pairs + layer.first_pair;
        rotate(qkv.q + row * shard.q_dim(), heads, cos, sin);
        rotate(k, kv_heads, cos, sin);
      }
      for (int head = 0; head < kv_heads; ++head) {
        const CachePlace place{run.sequence, cache_layer, head, position};
        cache.store_key(*compute.kernels, place, k + head * head_dim);
        cache.store_value(*compute.kernels, place, v + head * head_dim);
      }
    });
    first_row += run.rows;
  }
}

namespace {

/// What all tiles of one call share.
struct Attending {
  const Compute& compute;
  const ModelConfig& config;
  const LayerAttention& layer;
  const KvCache& cache;
  const HeadRows<const float>& q;
  const HeadRows<float>& out;
  int key_dim = 0;
  int value_dim = 0;  // of what is mixed: with a latent, the latent
  int v_stride = 0;
  std::int64_t longest = 0;  // text; biases[head][longest - 1] is that of a distance of 0
  std::span<const float> biases{};
};

/// The keys [first, visible) that a row of a run sees.
struct SeenKeys {
  int first = 0;
  int visible = 0;
};
SeenKeys seen_keys(const LayerAttention& layer, const SequenceRun& run, std::int64_t row) {
  const int position = run.position + static_cast<int>(row);
  if (layer.sight == Sight::kEncoded) return {0, run.encoder_rows};
  if (layer.sight == Sight::kBackwards) {
    return {layer.window > 0 ? std::max(0, position + 1 - layer.window) : 0, position + 1};
  }
  const int end = run.position + run.rows;
  if (layer.window == 0) return {0, end};
  const int half = layer.window / 2;
  return {std::max(0, position - half), std::min(end - position, half + 1) + position};
}

/// Up to kAttentionRows (token, query head) pairs that share one sequence and one key/value head.
struct Tile {
  const SequenceRun* run = nullptr;
  const KvCache::HeadPages* pages = nullptr;
  std::int64_t first_row = 0;   // of the run, in the batch
  IndexRange heads;             // of the shard's query heads, those that read this key/value head
  std::int64_t pair_begin = 0;  // pair = token in run * number of heads + head among them
  std::int64_t pair_end = 0;
};

/// The shard's query heads, counted from its first, that read its `kv_head`.
IndexRange heads_of(const ModelConfig& config, const Shard& shard, int kv_head) {
  const std::int64_t group = config.heads / config.kv_heads;
  const std::int64_t first = (shard.kv_heads.begin + kv_head) * group;
  return {std::max(first, shard.heads.begin) - shard.heads.begin,
          std::min(first + group, shard.heads.end) - shard.heads.begin};
}

void run_tile(const Attending& all, const Tile& tile, float* scratch) {
  const LayerAttention& layer = all.layer;
  const float* q_rows[kAttentionRows];
  float* out_rows[kAttentionRows];
  int visible[kAttentionRows];
  int first[kAttentionRows];
  float slopes[kAttentionRows];
  float sinks[kAttentionRows];
  const float* biases[kAttentionRows];
  int rows = 0;
  for (std::int64_t pair = tile.pair_begin; pair < tile.pair_end; ++pair, ++rows) {
    const std::int64_t token = pair / tile.heads.size();
    const std::int64_t head = tile.heads.begin + pair % tile.heads.size();
    const std::int64_t row = tile.first_row + token;
    q_rows[rows] = all.q.values + row * all.q.row_step + head * all.q.head_step;
    out_rows[rows] = all.out.values + row * all.out.row_step + head * all.out.head_step;
    const SeenKeys seen = seen_keys(layer, *tile.run, token);
    visible[rows] = seen.visible;
    first[rows] = seen.first;
    if (!all.biases.empty()) {
      biases[rows] = all.biases.data() + (2 * head + 1) * all.longest - head - 1 - (tile.run->position + token);
    }
    if (!layer.slopes.empty()) slopes[rows] = layer.slopes[static_cast<std::size_t>(head)];
    if (!layer.sinks.empty()) sinks[rows] = layer.sinks[static_cast<std::size_t>(head)];
  }
  AttentionArgs args;
  args.k_pages = tile.pages->keys.data();
  if (!all.config.has_latent()) args.v_pages = tile.pages->values.data();
  args.type = cache_type(all.cache.options().type);
  args.head_dim = all.key_dim;
  args.value_dim = all.value_dim;
  args.v_stride = all.v_stride;
  args.scale = layer.scale;
  args.cap = all.config.attention_cap;
  args.rows = rows;
  args.q = q_rows;
  args.out = out_rows;
  args.visible = visible;
  if (layer.window > 0) args.first = first;
  if (!layer.slopes.empty()) args.slopes = slopes;
  if (!layer.sinks.empty()) args.sinks = sinks;
  if (!all.biases.empty()) args.biases = biases;
  args.scratch = scratch;
  all.compute.kernels->attention(args);
}

/// A row over distances for each of the shard's heads, as long as the longest text needs it. Errors: kNoMemory.
Status fill_biases(const Compute& compute, const RelativeBias& bias, const Shard& shard, const Batch& batch,
                   Attending& all) {
  for (const SequenceRun& run : batch.runs) {
    all.longest = std::max<std::int64_t>(all.longest, run.position + run.rows);
  }
  const auto width = static_cast<std::size_t>(2 * all.longest - 1);
  const auto heads = static_cast<std::size_t>(shard.heads.size());
  BF_ASSIGN_OR_RETURN(const auto values, compute.arena->allocate_array<float>(heads * width));
  for (std::size_t head = 0; head < heads; ++head) {
    bias.fill(static_cast<std::int64_t>(head), 1 - all.longest, values.subspan(head * width, width));
  }
  all.biases = values;
  return {};
}

/// Counted over the keys that each row really sees, as two matmuls, of queries with keys and of weights with values;
/// each key and value is read from the cache once.
trace::Work work_of_attention(const Attending& all, const Shard& shard, const Batch& batch) {
  const auto heads = static_cast<std::uint64_t>(shard.heads.size());
  const auto dims = static_cast<std::uint64_t>(all.key_dim + all.value_dim);
  const KvCacheOptions& cache = all.cache.options();
  const auto cached = cached_bytes(cache.type, static_cast<std::uint64_t>(all.key_dim)) +
                      cached_bytes(cache.type, all.config.has_latent() ? 0 : static_cast<std::uint64_t>(all.value_dim));
  trace::Work work{.number = static_cast<std::uint32_t>(batch.rows()), .out = static_cast<std::uint32_t>(heads)};
  for (const SequenceRun& run : batch.runs) {
    std::uint64_t pairs = 0;
    int first = std::numeric_limits<int>::max();
    int end = 0;
    for (std::int64_t row = 0; row < run.rows; ++row) {
      const SeenKeys seen = seen_keys(all.layer, run, row);
      pairs += static_cast<std::uint64_t>(seen.visible - seen.first);
      first = std::min(first, seen.first);
      end = std::max(end, seen.visible);
      work.in = std::max(work.in, static_cast<std::uint32_t>(seen.visible - seen.first));
    }
    work.flops += 2 * pairs * dims * heads;
    work.bytes += static_cast<std::uint64_t>(end - first) * cached * static_cast<std::uint64_t>(shard.kv_heads.size());
  }
  work.bytes += static_cast<std::uint64_t>(batch.rows()) * heads * dims * sizeof(float);
  return work;
}

/// Keys that rows of this run see at most.
std::int64_t keys_of(const LayerAttention& layer, const SequenceRun& run) {
  return layer.sight == Sight::kEncoded ? run.encoder_rows : run.position + run.rows;
}

}  // namespace

Status attend(const Compute& compute, const ModelConfig& config, const LayerAttention& layer, const Shard& shard,
              const Batch& batch, int cache_layer, const KvCache& cache, const HeadRows<const float>& q,
              const HeadRows<float>& out) {
  trace::Scope scope(trace::Zone::kAttention);
  const auto kv_heads = static_cast<int>(shard.kv_heads.size());
  std::vector<KvCache::HeadPages> pages;
  pages.reserve(batch.runs.size() * static_cast<std::size_t>(kv_heads));
  std::vector<Tile> tiles;
  Attending all{.compute = compute, .config = config, .layer = layer, .cache = cache, .q = q, .out = out};
  all.key_dim = config.cached_key_dim();
  all.value_dim = config.has_latent() ? config.latent.dim : config.head_dim;
  all.v_stride = (all.value_dim + kPanel - 1) / kPanel * kPanel;
  if (scope.on()) scope.set_work(work_of_attention(all, shard, batch));
  if (layer.biases != nullptr) BF_TRY(fill_biases(compute, *layer.biases, shard, batch, all));
  const std::int64_t width = shard.heads.size() * (all.key_dim + all.value_dim) / 2;
  std::int64_t first_row = 0;
  std::int64_t work = 0;
  for (const SequenceRun& run : batch.runs) {
    for (int head = 0; head < kv_heads; ++head) {
      pages.push_back(cache.head_pages(run.sequence, cache_layer, head));
      const IndexRange heads = heads_of(config, shard, head);
      const std::int64_t pairs = run.rows * heads.size();
      for (std::int64_t pair = 0; pair < pairs; pair += kAttentionRows) {
        tiles.push_back({&run, &pages.back(), first_row, heads, pair, std::min(pair + kAttentionRows, pairs)});
      }
    }
    work += run.rows * keys_of(layer, run) * width;
    first_row += run.rows;
  }
  const int members = compute.team->size();
  const std::int64_t per_member = kAttentionRows * (kAttentionSegment + 2 * all.v_stride);
  BF_ASSIGN_OR_RETURN(const auto scratch,
                      compute.arena->allocate_array<float>(static_cast<std::uint64_t>(per_member * members)));
  constexpr std::int64_t kWorthWaking = 128 * 1024;  // multiply-adds; see for_each_row
  if (members == 1 || work < kWorthWaking) {
    for (const Tile& tile : tiles) run_tile(all, tile, scratch.data());
    return {};
  }
  std::atomic<std::size_t> next{0};
  compute.team->run([&](int member) {
    for (std::size_t i = next++; i < tiles.size(); i = next++) {
      run_tile(all, tiles[i], scratch.data() + per_member * member);
    }
  });
  return {};
}

}  // namespace butterfly
