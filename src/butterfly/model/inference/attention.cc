#include "butterfly/model/inference/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "butterfly/trace/trace.h"

namespace butterfly {

void rotate_and_store(const Compute& compute, const ModelConfig& config, const Shard& shard, const Batch& batch,
                      const RotaryRows& rotary, int cache_layer, KvCache& cache, const QueryKeyValue& qkv) {
  const auto heads = static_cast<int>(shard.heads.size());
  const auto kv_heads = static_cast<int>(shard.kv_heads.size());
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t pairs = config.position == PositionKind::kRope ? config.rope.dim / 2 : 0;
  const bool adjacent = config.rope.pairs == RopePairs::kAdjacent;
  const bool half = cache.options().type == DType::kF16;
  std::int64_t first_row = 0;
  for (const SequenceRun& run : batch.runs) {
    for_each_row(compute, run.rows, shard.q_dim() + 2 * shard.kv_dim(), [&](std::int64_t i) {
      const std::int64_t row = first_row + i;
      const std::int64_t position = run.position + i;
      float* q = qkv.q + row * shard.q_dim();
      float* k = qkv.k + row * shard.kv_dim();
      const float* v = qkv.v + row * shard.kv_dim();
      if (pairs > 0) {
        const float* cos = rotary.cos.data() + row * pairs;
        const float* sin = rotary.sin.data() + row * pairs;
        for (int head = 0; head < heads; ++head) compute.kernels->rope(q + head * head_dim, cos, sin, pairs, adjacent);
        for (int head = 0; head < kv_heads; ++head)
          compute.kernels->rope(k + head * head_dim, cos, sin, pairs, adjacent);
      }
      for (int head = 0; head < kv_heads; ++head) {
        compute.kernels->store_key(k + head * head_dim, head_dim, half,
                                   cache.key_at(run.sequence, cache_layer, head, position));
        compute.kernels->store_value(v + head * head_dim, head_dim, half,
                                     cache.value_at(run.sequence, cache_layer, head, position));
      }
    });
    first_row += run.rows;
  }
}

namespace {

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

void run_tile(const Compute& compute, const Shard& shard, const KvCache& cache, const Tile& tile, const float* q,
              float* out, float* scratch) {
  const float* q_rows[kAttentionRows];
  float* out_rows[kAttentionRows];
  int visible[kAttentionRows];
  int rows = 0;
  for (std::int64_t pair = tile.pair_begin; pair < tile.pair_end; ++pair, ++rows) {
    const std::int64_t token = pair / tile.heads.size();
    const std::int64_t head = tile.heads.begin + pair % tile.heads.size();
    const std::int64_t at = (tile.first_row + token) * shard.q_dim() + head * shard.head_dim;
    q_rows[rows] = q + at;
    out_rows[rows] = out + at;
    visible[rows] = static_cast<int>(tile.run->position + token + 1);
  }
  AttentionArgs args;
  args.k_pages = tile.pages->keys.data();
  args.v_pages = tile.pages->values.data();
  args.half = cache.options().type == DType::kF16;
  args.head_dim = shard.head_dim;
  args.v_stride = cache.value_stride();
  args.scale = 1.0f / std::sqrt(static_cast<float>(shard.head_dim));
  args.rows = rows;
  args.q = q_rows;
  args.out = out_rows;
  args.visible = visible;
  args.scratch = scratch;
  compute.kernels->attention(args);
}

}  // namespace

Status attend(const Compute& compute, const ModelConfig& config, const Shard& shard, const Batch& batch,
              int cache_layer, const KvCache& cache, const float* q, float* out) {
  const trace::Scope scope(trace::Zone::kKernelAttention, static_cast<std::uint32_t>(batch.rows()));
  const auto kv_heads = static_cast<int>(shard.kv_heads.size());
  std::vector<KvCache::HeadPages> pages;
  pages.reserve(batch.runs.size() * static_cast<std::size_t>(kv_heads));
  std::vector<Tile> tiles;
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
    work += static_cast<std::int64_t>(run.rows) * (run.position + run.rows) * shard.q_dim();
    first_row += run.rows;
  }
  const int members = compute.team->size();
  const std::int64_t per_member = kAttentionRows * (kAttentionSegment + 2 * cache.value_stride());
  BF_ASSIGN_OR_RETURN(const auto scratch,
                      compute.arena->allocate_array<float>(static_cast<std::uint64_t>(per_member * members)));
  constexpr std::int64_t kWorthWaking = 128 * 1024;  // multiply-adds; see for_each_row
  if (members == 1 || work < kWorthWaking) {
    for (const Tile& tile : tiles) run_tile(compute, shard, cache, tile, q, out, scratch.data());
    return {};
  }
  std::atomic<std::size_t> next{0};
  compute.team->run([&](int member) {
    for (std::size_t i = next++; i < tiles.size(); i = next++) {
      run_tile(compute, shard, cache, tiles[i], q, out, scratch.data() + per_member * member);
    }
  });
  return {};
}

}  // namespace butterfly
