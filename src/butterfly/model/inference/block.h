// One transformer block, described by ModelConfig: norms, attention over cached keys and values, MLP, two residuals.
// Weights are packed once and immutable; forward() is thread-compatible (one call at a time per Compute).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/model/core/batch.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/shard.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/inference/compute.h"
#include "butterfly/model/inference/experts.h"
#include "butterfly/model/inference/kv_cache.h"
#include "butterfly/model/inference/linear_weights.h"
#include "butterfly/model/inference/relative_bias.h"
#include "butterfly/model/inference/tensor_group.h"

namespace butterfly {

struct NormWeights {
  std::vector<float> weight;  // [model_dim]; empty: no norm
  std::vector<float> bias;    // [model_dim] or empty
};

/// Of rows of model_dim, or of `width`. Errors: those of load_vector().
Result<NormWeights> load_norm(const WeightSource& source, const std::string& name, const ModelConfig& config);
Result<NormWeights> load_norm(const WeightSource& source, const std::string& name, const ModelConfig& config,
                              std::int64_t width);

/// y[row] = norm(x[row]), both [rows, the norm's width]; y may be x. The other is a part of an operation.
void norm_row(const Kernels& kernels, const ModelConfig& config, const NormWeights& norm, const float* x, float* y);
void apply_norm(const Compute& compute, const ModelConfig& config, const NormWeights& norm, std::int64_t rows,
                const float* x, float* y);

/// cos and sin for every row of a batch, [rows, frequencies] each; computed once per step, used by every block.
struct RotaryRows {
  std::span<float> cos;
  std::span<float> sin;
};
Result<RotaryRows> rotary_rows(const Compute& compute, std::span<const double> frequencies, const Batch& batch);

/// Which keys a query sees: those up to its own position; those of its whole text; those of the encoded text.
enum class Sight : std::uint8_t { kBackwards, kText, kEncoded };

/// What one layer's attention does apart from its matmuls; sinks and biases are weights, and filled in by who loads
/// them.
struct LayerAttention {
  Sight sight = Sight::kBackwards;
  int window = 0;  // keys that a query sees, or with kText the distance on both sides together; 0: all
  float scale = 1.0f;
  RopeConfig rope;                               // dim is 0 where nothing is rotated
  std::int64_t first_pair = 0;                   // of its frequencies among the model's
  std::vector<float> slopes;                     // of the shard's query heads; empty: none
  std::vector<float> sinks;                      // likewise
  std::shared_ptr<const RelativeBias> biases{};  // null: none; copies of a block share them
};
LayerAttention layer_attention(const ModelConfig& config, int layer, const Shard& shard);

struct LatentWeights;  // latent_attention.h
class CrossAttention;  // cross_attention.h

class Block {
 public:
  /// What the holder of `slices` needs.
  static Result<Block> load(const ModelConfig& config, int layer, const WeightSource& source, ThreadTeam& team,
                            const HeldSlices& slices = {});

  /// x[rows, model_dim] is the residual stream, updated in place. `cache_layer` is this block's index in `cache`,
  /// which has this block's key/value heads and room for every position of `batch`. With some of the slices alone,
  /// compute.group adds the others' (two matmuls, three where it attends to an encoder). Of a model with encoder and
  /// decoder, an encoder's block leaves rows of a decoder as they are, and a decoder's block keeps what it will attend
  /// to of an encoder's rows. Errors: kNoMemory (scratch), those of the group.
  Status forward(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer, KvCache& cache,
                 float* x) const;

  std::uint64_t packed_bytes() const;

  /// By canonical name without "blk.N." and ".weight", as far as this node holds it; null for other names.
  const PackedMatrix* matrix(std::string_view name) const;

 private:
  Status load_attention(const WeightSource& source, const std::string& prefix, ThreadTeam& team);
  Status load_norms(int layer, const WeightSource& source, const std::string& prefix);
  Status attention(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                   KvCache& cache, float* input, float* x) const;
  Result<float*> mix_heads(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                           KvCache& cache, float* input) const;
  Status mlp(const Compute& compute, std::int64_t rows, float* input, float* x) const;
  Status add_output(const Compute& compute, DividedMatmul matmul, const ActivationRows& h, float* x) const;
  void add_result(const Compute& compute, DividedMatmul matmul, std::int64_t rows, float* y, float* x) const;
  Status load_mlp(int layer, const std::string& prefix, const WeightSource& source, ThreadTeam& team);
  Status load_encoder(int layer, const std::string& prefix, const WeightSource& source, ThreadTeam& team);
  Status run(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer, KvCache& cache,
             float* x) const;

  ModelConfig config_;
  Shard shard_;
  SliceBorders attention_slices_, mlp_slices_;  // of sums over the heads, and over the MLP's columns
  LayerAttention layer_;
  bool encoder_ = false;
  NormWeights encoder_norm_;                     // of the last encoder layer before a decoder
  std::shared_ptr<const CrossAttention> cross_;  // null: none; copies of a block share it
  NormWeights attn_norm_, ffn_norm_;
  NormWeights post_attention_norm_, post_ffw_norm_;  // of what attention and MLP give
  std::vector<float> q_norm_, k_norm_;
  LinearWeights q_, k_, v_, attn_output_;
  std::shared_ptr<const LatentWeights> latent_;  // instead of q_, k_ and v_; copies of a block share it
  LinearWeights gate_, up_, down_;               // gate only where the MLP is gated; empty in layers with experts
  std::optional<Experts> experts_;
};

}  // namespace butterfly
