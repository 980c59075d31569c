// Multi-head latent attention (https://arxiv.org/abs/2405.04434). What is cached for a token is its normed latent and
// one rotated key that all heads share. Instead of making each head's keys and values from every cached latent, a
// head's query is taken to the latent (attn_k_b), attention mixes latents, and the mixed latent becomes the head's
// value (attn_v_b): the order of these products is part of the definition of the bits. Members of a tensor group hold
// the matrices of their heads and the whole cache. Immutable after loading; thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/model/core/batch.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/inference/block.h"
#include "butterfly/model/inference/compute.h"
#include "butterfly/model/inference/kv_cache.h"

namespace butterfly {

struct LatentWeights {
  LinearWeights query_down;               // attn_q_a, where queries have a rank
  std::vector<float> query_norm;          // [query_rank]
  LinearWeights query;                    // attn_q or attn_q_b
  LinearWeights latent;                   // attn_kv_a_mqa
  std::vector<float> latent_norm;         // [latent.dim]
  std::vector<PackedMatrix> to_latent;    // attn_k_b of each head: [latent.dim, elements that are not rotated]
  std::vector<PackedMatrix> from_latent;  // attn_v_b of each head: [value_dim, latent.dim]

  std::uint64_t packed_bytes() const;
  /// Whether one of the matrices that the block's input meets reads it quantised.
  /// How the matrices that the block's input goes through read it.
  RowForm input_form() const;
};

/// Errors: those of load_linear and load_vector.
Result<LatentWeights> load_latent_weights(const ModelConfig& config, const Shard& shard, const WeightSource& source,
                                          const std::string& prefix, ThreadTeam& team);

/// Where a step's attention happens.
struct AttentionStep {
  const Compute& compute;
  const ModelConfig& config;
  const LayerAttention& layer;
  const Shard& shard;
  const Batch& batch;
  const RotaryRows& rotary;
  int cache_layer = 0;
  KvCache& cache;
};

/// mixed[rows, heads * value_dim] of the shard's heads, of which there is at least one. Errors: kNoMemory (scratch).
Status mix_latent_heads(const AttentionStep& step, const LatentWeights& weights, const ActivationRows& input,
                        float* mixed);

}  // namespace butterfly
