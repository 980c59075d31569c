#include "butterfly/model/inference/cross_attention.h"

#include <array>

#include "butterfly/model/inference/attention.h"
#include "butterfly/model/inference/tensor_group.h"

namespace butterfly {

Result<CrossAttention> CrossAttention::load(const ModelConfig& config, const std::string& prefix,
                                            const WeightSource& source, ThreadTeam& team, const Shard& shard) {
  CrossAttention cross;
  cross.config_ = config;
  cross.shard_ = shard;
  cross.layer_ = layer_attention(config, config.encoder_layers, shard);
  cross.layer_.sight = Sight::kEncoded;
  BF_ASSIGN_OR_RETURN(cross.norm_, load_norm(source, prefix + "cross_attn_norm", config));
  const IndexRange all{0, config.model_dim};
  const auto load = [&](LinearWeights& target, const char* name, std::int64_t rows, const IndexRange& held) -> Status {
    const LinearPart part{{rows, config.model_dim, held, all}, config.qkv_bias};
    BF_ASSIGN_OR_RETURN(target, load_linear(source, prefix + name, part, team));
    return {};
  };
  BF_TRY(load(cross.q_, "cross_attn_q", config.q_dim(), shard.q()));
  BF_TRY(load(cross.k_, "cross_attn_k", config.kv_dim(), shard.kv()));
  BF_TRY(load(cross.v_, "cross_attn_v", config.kv_dim(), shard.kv()));
  const LinearPart output{{config.model_dim, config.mixed_dim(), all, shard.mixed()}, config.attention_output_bias};
  BF_ASSIGN_OR_RETURN(cross.output_, load_linear(source, prefix + "cross_attn_output", output, team));
  return cross;
}

Status CrossAttention::keep(const Compute& compute, const Batch& batch, int cache_layer, KvCache& cache,
                            float* x) const {
  if (shard_.kv_heads.size() == 0) return {};
  const std::int64_t rows = batch.rows();
  BF_ASSIGN_OR_RETURN(const auto a,
                      prepared_rows(compute, rows, config_.model_dim, x, row_form({&k_.matrix, &v_.matrix})));
  BF_ASSIGN_OR_RETURN(float* k, allocate_floats(compute, rows, shard_.kv_dim()));
  BF_ASSIGN_OR_RETURN(float* v, allocate_floats(compute, rows, shard_.kv_dim()));
  const SliceBorders whole = SliceBorders::single(config_.model_dim);
  const std::array jobs{LinearJob{&k_.matrix, &a, whole, k_.bias_or_null(), nullptr, k},
                        LinearJob{&v_.matrix, &a, whole, v_.bias_or_null(), nullptr, v}};
  run_linear(*compute.kernels, *compute.team, jobs, trace::Zone::kCross);
  // Nothing is rotated, and no queries come with these keys.
  rotate_and_store(compute, config_, layer_, shard_, batch, {}, cache.cross_layer(cache_layer), cache, {nullptr, k, v});
  return {};
}

Status CrossAttention::forward(const Compute& compute, const Batch& batch, int cache_layer, const KvCache& cache,
                               float* x) const {
  const std::int64_t rows = batch.rows();
  BF_ASSIGN_OR_RETURN(float* mixed, allocate_floats(compute, rows, shard_.mixed_dim()));
  if (shard_.heads.size() > 0) {
    BF_ASSIGN_OR_RETURN(float* normed, allocate_floats(compute, rows, config_.model_dim));
    apply_norm(compute, config_, norm_, rows, x, normed);
    BF_ASSIGN_OR_RETURN(const auto a, prepared_rows(compute, rows, config_.model_dim, normed, row_form({&q_.matrix})));
    BF_ASSIGN_OR_RETURN(float* q, allocate_floats(compute, rows, shard_.q_dim()));
    const LinearJob job{&q_.matrix, &a, SliceBorders::single(config_.model_dim), q_.bias_or_null(), nullptr, q};
    run_linear(*compute.kernels, *compute.team, std::span(&job, 1), trace::Zone::kCross);
    BF_TRY(attend(compute, config_, layer_, shard_, batch, cache.cross_layer(cache_layer), cache,
                  {q, shard_.q_dim(), config_.head_dim}, {mixed, shard_.mixed_dim(), config_.head_dim}));
  }
  const SliceBorders slices = attention_slices(config_);
  BF_ASSIGN_OR_RETURN(const auto o, prepared_rows(compute, rows, shard_.mixed_dim(), mixed,
                                                  row_form(output_.matrix, slices, shard_.slices)));
  const DividedWeights weights{.weights = &output_.matrix, .bias = output_.bias_or_null()};
  return add_divided_matmul(compute, DividedMatmul::kCrossOutput, slices, weights, o, x);
}

std::uint64_t CrossAttention::packed_bytes() const {
  std::uint64_t bytes = (norm_.weight.size() + norm_.bias.size()) * sizeof(float);
  for (const LinearWeights* linear : {&q_, &k_, &v_, &output_}) bytes += linear->bytes();
  return bytes;
}

const PackedMatrix* CrossAttention::matrix(std::string_view name) const {
  const std::array<std::pair<std::string_view, const LinearWeights*>, 4> all{
      {{"cross_attn_q", &q_}, {"cross_attn_k", &k_}, {"cross_attn_v", &v_}, {"cross_attn_output", &output_}}};
  for (const auto& [known, linear] : all) {
    if (known == name) return &linear->matrix;
  }
  return nullptr;
}

}  // namespace butterfly
