// Attention of a decoder's rows to what an encoder made of another text: its keys and values are computed once, when
// the encoder's rows pass by, and kept in further layers of the cache. Immutable after loading; thread-compatible.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/model/inference/block.h"

namespace butterfly {

class CrossAttention {
 public:
  /// What the holder of `shard` needs. Errors: those of load_linear().
  static Result<CrossAttention> load(const ModelConfig& config, const std::string& prefix, const WeightSource& source,
                                     ThreadTeam& team, const Shard& shard);

  /// Keys and values of the encoder's rows x[rows, model_dim] into the cache layer that belongs to `cache_layer`.
  /// Errors: kNoMemory (scratch).
  Status keep(const Compute& compute, const Batch& batch, int cache_layer, KvCache& cache, float* x) const;

  /// x += attention(norm(x)) over the positions that each run's encoder_rows says. Errors: kNoMemory (scratch), those
  /// of the group.
  Status forward(const Compute& compute, const Batch& batch, int cache_layer, const KvCache& cache, float* x) const;

  std::uint64_t packed_bytes() const;
  /// As Block::matrix().
  const PackedMatrix* matrix(std::string_view name) const;

 private:
  ModelConfig config_;
  Shard shard_;
  LayerAttention layer_;
  NormWeights norm_;
  LinearWeights q_, k_, v_, output_;
};

}  // namespace butterfly
