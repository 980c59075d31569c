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

/// Rotates q and k in place (rotary models) and stores k and v at their positions.
void rotate_and_store(const Compute& compute, const ModelConfig& config, const Shard& shard, const Batch& batch,
                      const RotaryRows& rotary, int cache_layer, KvCache& cache, const QueryKeyValue& qkv);

/// out[rows, heads * head_dim] of the shard's heads; a query sees the keys up to its own position.
/// Errors: kNoMemory (scratch).
Status attend(const Compute& compute, const ModelConfig& config, const Shard& shard, const Batch& batch,
              int cache_layer, const KvCache& cache, const float* q, float* out);

}  // namespace butterfly
