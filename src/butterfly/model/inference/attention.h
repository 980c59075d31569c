// Attention of a whole batch over the cache: rotation and storing of new keys and values, then every query against
// the keys of its sequence. Work is cut along (sequence, key/value head, rows); no cut shows in the bits.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/core/batch.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/inference/block.h"
#include "butterfly/model/inference/compute.h"
#include "butterfly/model/inference/kv_cache.h"

namespace butterfly {

/// Matmuls of one block's input: q[rows, heads * head_dim], k and v[rows, kv_heads * head_dim], of a shard's heads.
struct QueryKeyValue {
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
};

/// Norms the rows of a matmul's result in place, each head or each row as a whole. `held`: what of a row is kept; the
/// result has rows of held.size(). Errors: kNoMemory.
struct QkNormArgs {
  std::span<const float> weight;  // [head_dim] or the width of a row
  std::int64_t rows = 0;
  IndexRange computed{};  // what of a row x has
  IndexRange held{};      // within it
};
Result<float*> norm_queries_or_keys(const Compute& compute, const ModelConfig& config, const QkNormArgs& args,
                                    float* x);

/// Rotates q and k in place (rotary layers; elsewhere q is not looked at) and stores k and v at their positions.
void rotate_and_store(const Compute& compute, const ModelConfig& config, const LayerAttention& layer,
                      const Shard& shard, const Batch& batch, const RotaryRows& rotary, int cache_layer, KvCache& cache,
                      const QueryKeyValue& qkv);

/// Turns `pairs` of consecutive elements of a head, and scales them, as the layer does; x[0] is the first of them.
void rotate_head(const Compute& compute, const LayerAttention& layer, const float* cos, const float* sin, float* x);

/// A vector for each head of each row: that of head h of row r begins at values[r * row_step + h * head_step].
template <typename T>
struct HeadRows {
  T* values = nullptr;
  std::int64_t row_step = 0;
  std::int64_t head_step = 0;
};

/// out of the shard's heads, from queries as long as cached keys; a query sees the keys that the layer's sight and
/// window say. Errors: kNoMemory (scratch).
Status attend(const Compute& compute, const ModelConfig& config, const LayerAttention& layer, const Shard& shard,
              const Batch& batch, int cache_layer, const KvCache& cache, const HeadRows<const float>& q,
              const HeadRows<float>& out);

}  // namespace butterfly
