#include "butterfly/model/inference/block.h"

#include <algorithm>
#include <array>

#include "butterfly/model/core/rotary.h"
#include "butterfly/model/inference/attention.h"
#include "butterfly/model/inference/cross_attention.h"
#include "butterfly/model/inference/latent_attention.h"
#include "butterfly/model/inference/tensor_group.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

Result<NormWeights> load_norm(const WeightSource& source, const std::string& name, const ModelConfig& config,
                              std::int64_t width) {
  NormWeights norm;
  const IndexRange all{0, width};
  BF_ASSIGN_OR_RETURN(norm.weight, load_vector(source, name + ".weight", width, all));
  if (config.norm_bias) {
    BF_ASSIGN_OR_RETURN(norm.bias, load_vector(source, name + ".bias", width, all));
  }
  return norm;
}

Result<NormWeights> load_norm(const WeightSource& source, const std::string& name, const ModelConfig& config) {
  return load_norm(source, name, config, config.model_dim);
}

void norm_row(const Kernels& kernels, const ModelConfig& config, const NormWeights& norm, const float* x, float* y) {
  const auto dim = static_cast<std::int64_t>(norm.weight.size());
  if (config.norm == NormKind::kRms) {
    kernels.rms_norm(x, norm.weight.data(), config.norm_epsilon, dim, y);
  } else {
    const float* bias = norm.bias.empty() ? nullptr : norm.bias.data();
    kernels.layer_norm(x, norm.weight.data(), bias, config.norm_epsilon, dim, y);
  }
}

namespace {

void norm_rows(const Compute& compute, const ModelConfig& config, const NormWeights& norm, std::int64_t rows,
               const float* x, float* y) {
  const auto dim = static_cast<std::int64_t>(norm.weight.size());
  for_each_row(compute, rows, dim,
               [&](std::int64_t row) { norm_row(*compute.kernels, config, norm, x + row * dim, y + row * dim); });
}

}  // namespace

void apply_norm(const Compute& compute, const ModelConfig& config, const NormWeights& norm, std::int64_t rows,
                const float* x, float* y) {
  const auto dim = static_cast<std::int64_t>(norm.weight.size());
  const trace::Scope scope(trace::Zone::kNorm, work_on_rows(rows, dim, 2 * dim));
  norm_rows(compute, config, norm, rows, x, y);
}

Result<RotaryRows> rotary_rows(const Compute& compute, std::span<const double> frequencies, const Batch& batch) {
  RotaryRows rows;
  const std::size_t pairs = frequencies.size();
  const auto count = static_cast<std::uint64_t>(batch.rows()) * pairs;
  const auto width = static_cast<std::int64_t>(2 * pairs);
  const trace::Scope scope(trace::Zone::kRotary, work_on_rows(batch.rows(), width, width));
  BF_ASSIGN_OR_RETURN(rows.cos, compute.arena->allocate_array<float>(count));
  BF_ASSIGN_OR_RETURN(rows.sin, compute.arena->allocate_array<float>(count));
  std::size_t at = 0;
  for (const SequenceRun& run : batch.runs) {
    for (std::int64_t i = 0; i < run.rows; ++i, at += pairs) {
      rotary_angles(frequencies, run.position + i, rows.cos.subspan(at, pairs), rows.sin.subspan(at, pairs));
    }
  }
  return rows;
}

Result<Block> Block::load(const ModelConfig& config, int layer, const WeightSource& source, ThreadTeam& team,
                          const HeldSlices& slices) {
  const trace::Scope scope(trace::Zone::kLoadModel, {.number = static_cast<std::uint32_t>(layer)});
  Block block;
  block.config_ = config;
  block.shard_ = shard_of(config, slices);
  block.attention_slices_ = attention_slices(config);
  block.mlp_slices_ = mlp_slices(config);
  const Shard& shard = block.shard_;
  const std::string prefix = fmt::format("blk.{}.", config.weight_layer(layer));
  block.layer_ = layer_attention(config, layer, shard);
  BF_TRY(block.load_norms(layer, source, prefix));
  BF_TRY(block.load_attention(source, prefix, team));
  const LinearPart output{{config.model_dim, config.mixed_dim(), {0, config.model_dim}, shard.mixed()},
                          config.attention_output_bias};
  BF_ASSIGN_OR_RETURN(block.attn_output_, load_linear(source, prefix + "attn_output", output, team));
  BF_TRY(block.load_mlp(layer, prefix, source, team));
  BF_TRY(block.load_encoder(layer, prefix, source, team));
  return block;
}

Status Block::load_encoder(int layer, const std::string& prefix, const WeightSource& source, ThreadTeam& team) {
  encoder_ = config_.is_encoder(layer);
  if (config_.relative.buckets > 0 && shard_.heads.size() > 0) {
    BF_ASSIGN_OR_RETURN(RelativeBias bias,
                        RelativeBias::load(config_, layer, source, prefix + "attn_rel_b.weight", shard_));
    layer_.biases = std::make_shared<const RelativeBias>(std::move(bias));
  }
  if (config_.has_decoder() && layer == config_.encoder_layers - 1) {
    BF_ASSIGN_OR_RETURN(encoder_norm_, load_norm(source, prefix + "encoder_norm", config_));
  }
  if (!config_.has_cross_attention(layer)) return {};
  BF_ASSIGN_OR_RETURN(CrossAttention cross, CrossAttention::load(config_, prefix, source, team, shard_));
  cross_ = std::make_shared<const CrossAttention>(std::move(cross));
  return {};
}

Status Block::load_attention(const WeightSource& source, const std::string& prefix, ThreadTeam& team) {
  if (config_.attention_sinks && shard_.heads.size() > 0) {
    BF_ASSIGN_OR_RETURN(layer_.sinks, load_vector(source, prefix + "attn_sinks.weight", config_.heads, shard_.heads));
  }
  if (config_.has_latent()) {
    BF_ASSIGN_OR_RETURN(LatentWeights latent, load_latent_weights(config_, shard_, source, prefix, team));
    latent_ = std::make_shared<const LatentWeights>(std::move(latent));
    return {};
  }
  const auto load = [&](LinearWeights& target, const char* name, std::int64_t rows, const IndexRange& held) -> Status {
    const LinearPart part{{rows, config_.model_dim, held, {0, config_.model_dim}}, config_.qkv_bias};
    BF_ASSIGN_OR_RETURN(target, load_linear(source, prefix + name, part, team));
    return {};
  };
  BF_TRY(load(q_, "attn_q", config_.q_dim(), shard_.q_rows));
  BF_TRY(load(k_, "attn_k", config_.kv_dim(), shard_.k_rows));
  return load(v_, "attn_v", config_.kv_dim(), shard_.kv());
}

Status Block::load_mlp(int layer, const std::string& prefix, const WeightSource& source, ThreadTeam& team) {
  if (config_.has_experts(layer)) {
    BF_ASSIGN_OR_RETURN(experts_, Experts::load(config_, layer, source, team, shard_));
    return {};
  }
  const IndexRange all{0, config_.model_dim};
  const LinearPart in{{config_.ff_dim, config_.model_dim, shard_.ff, all}, config_.mlp_bias};
  const LinearPart out{{config_.model_dim, config_.ff_dim, all, shard_.ff}, config_.mlp_bias};
  if (config_.mlp == MlpKind::kGated) {
    BF_ASSIGN_OR_RETURN(gate_, load_linear(source, prefix + "ffn_gate", in, team));
  }
  BF_ASSIGN_OR_RETURN(up_, load_linear(source, prefix + "ffn_up", in, team));
  BF_ASSIGN_OR_RETURN(down_, load_linear(source, prefix + "ffn_down", out, team));
  return {};
}

Status Block::load_norms(int layer, const WeightSource& source, const std::string& prefix) {
  const auto load = [&](NormWeights& norm, const char* name) -> Status {
    BF_ASSIGN_OR_RETURN(norm, load_norm(source, prefix + name, config_));
    return {};
  };
  if (config_.norm_place != NormPlace::kOutput) {
    if (config_.has_attention_norm(layer)) BF_TRY(load(attn_norm_, "attn_norm"));
    if (!config_.shared_norm) BF_TRY(load(ffn_norm_, "ffn_norm"));
  }
  if (config_.norms_outputs()) {
    BF_TRY(load(post_attention_norm_, "post_attention_norm"));
    BF_TRY(load(post_ffw_norm_, "post_ffw_norm"));
  }
  if (config_.qk_norm == QkNorm::kNone) return {};
  const bool head = config_.qk_norm == QkNorm::kHead;
  const std::int64_t q_width = head ? config_.head_dim : config_.q_dim();
  const std::int64_t k_width = head ? config_.head_dim : config_.kv_dim();
  BF_ASSIGN_OR_RETURN(q_norm_, load_vector(source, prefix + "attn_q_norm.weight", q_width, {0, q_width}));
  BF_ASSIGN_OR_RETURN(k_norm_, load_vector(source, prefix + "attn_k_norm.weight", k_width, {0, k_width}));
  return {};
}

namespace {

/// What attention or MLP reads: norm(x) in new memory where the norm comes before, else x itself.
Result<float*> sublayer_input(const Compute& compute, const ModelConfig& config, const NormWeights& norm,
                              std::int64_t rows, float* x) {
  if (config.norm_place == NormPlace::kAfter || config.norm_place == NormPlace::kOutput) return x;
  if (norm.weight.empty()) return x;
  const trace::Scope scope(trace::Zone::kNorm, work_on_rows(rows, config.model_dim, 2 * config.model_dim));
  BF_ASSIGN_OR_RETURN(float* normed, allocate_floats(compute, rows, config.model_dim));
  norm_rows(compute, config, norm, rows, x, normed);
  return normed;
}

void clear_rows(std::int64_t rows, std::int64_t width, float* y) {
  const trace::Scope scope(trace::Zone::kResidual, work_on_rows(rows, width, width));
  std::fill(y, y + rows * width, 0.0f);
}

}  // namespace

Status Block::forward(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                      KvCache& cache, float* x) const {
  const bool encodes = batch.kind == BatchKind::kEncode;
  if (cross_ != nullptr && encodes) return cross_->keep(compute, batch, cache_layer, cache, x);
  if (encoder_ && !encodes) return {};
  BF_TRY(run(compute, batch, rotary, cache_layer, cache, x));
  if (!encoder_norm_.weight.empty()) apply_norm(compute, config_, encoder_norm_, batch.rows(), x, x);
  return {};
}

Status Block::run(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer, KvCache& cache,
                  float* x) const {
  const std::int64_t rows = batch.rows();
  BF_ASSIGN_OR_RETURN(float* attention_input, sublayer_input(compute, config_, attn_norm_, rows, x));
  if (!config_.parallel_block) {
    BF_TRY(attention(compute, batch, rotary, cache_layer, cache, attention_input, x));
    if (cross_ != nullptr) BF_TRY(cross_->forward(compute, batch, cache_layer, cache, x));
    BF_ASSIGN_OR_RETURN(float* mlp_input, sublayer_input(compute, config_, ffn_norm_, rows, x));
    return mlp(compute, rows, mlp_input, x);
  }
  float* mlp_input = attention_input;
  if (!config_.shared_norm) {
    BF_ASSIGN_OR_RETURN(mlp_input, sublayer_input(compute, config_, ffn_norm_, rows, x));
  }
  BF_TRY(attention(compute, batch, rotary, cache_layer, cache, attention_input, x));
  return mlp(compute, rows, mlp_input, x);
}

/// x += residual scale * norm(the matmul of h), with what of it the model has; norm(x) after it where that is its
/// place.
Status Block::add_output(const Compute& compute, DividedMatmul matmul, const ActivationRows& h, float* x) const {
  const bool of_attention = matmul == DividedMatmul::kAttentionOutput;
  const LinearWeights& linear = of_attention ? attn_output_ : down_;
  const DividedWeights weights{.weights = &linear.matrix, .bias = linear.bias_or_null()};
  const SliceBorders& slices = of_attention ? attention_slices_ : mlp_slices_;
  if (!config_.norms_outputs() && config_.residual_scale == 1.0f) {
    BF_TRY(add_divided_matmul(compute, matmul, slices, weights, h, x));
    if (config_.norm_place == NormPlace::kAfter) {
      apply_norm(compute, config_, of_attention ? attn_norm_ : ffn_norm_, h.rows, x, x);
    }
    return {};
  }
  const std::int64_t dim = config_.model_dim;
  BF_ASSIGN_OR_RETURN(float* y, allocate_floats(compute, h.rows, dim));
  clear_rows(h.rows, dim, y);
  BF_TRY(add_divided_matmul(compute, matmul, slices, weights, h, y));
  add_result(compute, matmul, h.rows, y, x);
  return {};
}

/// The same of y, what attention or MLP gives; y is scratch afterwards.
void Block::add_result(const Compute& compute, DividedMatmul matmul, std::int64_t rows, float* y, float* x) const {
  const bool of_attention = matmul == DividedMatmul::kAttentionOutput;
  const std::int64_t dim = config_.model_dim;
  if (config_.norms_outputs()) {
    apply_norm(compute, config_, of_attention ? post_attention_norm_ : post_ffw_norm_, rows, y, y);
  }
  {
    const trace::Scope scope(trace::Zone::kResidual, work_on_rows(rows, dim, 3 * dim));
    for_each_row(compute, rows, dim, [&](std::int64_t row) {
      if (config_.residual_scale != 1.0f) compute.kernels->scale(config_.residual_scale, dim, y + row * dim);
      compute.kernels->add(y + row * dim, dim, x + row * dim);
    });
  }
  if (config_.norm_place == NormPlace::kAfter) {
    apply_norm(compute, config_, of_attention ? attn_norm_ : ffn_norm_, rows, x, x);
  }
}

Status Block::attention(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                        KvCache& cache, float* input, float* x) const {
  const std::int64_t rows = batch.rows();
  float* mixed = nullptr;
  if (shard_.heads.size() > 0) {
    BF_ASSIGN_OR_RETURN(mixed, mix_heads(compute, batch, rotary, cache_layer, cache, input));
  }
  const RowForm form = row_form(attn_output_.matrix, attention_slices_, shard_.slices);
  BF_ASSIGN_OR_RETURN(const auto o, prepared_rows(compute, rows, shard_.mixed_dim(), mixed, form));
  return add_output(compute, DividedMatmul::kAttentionOutput, o, x);
}

/// [rows, shard_.mixed_dim()]: what the heads of this share make of their input.
Result<float*> Block::mix_heads(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                                KvCache& cache, float* input) const {
  const std::int64_t rows = batch.rows();
  const RowForm form = latent_ != nullptr ? latent_->input_form() : row_form({&q_.matrix, &k_.matrix, &v_.matrix});
  BF_ASSIGN_OR_RETURN(const ActivationRows a, prepared_rows(compute, rows, config_.model_dim, input, form));
  if (latent_ != nullptr) {
    BF_ASSIGN_OR_RETURN(float* mixed, allocate_floats(compute, rows, shard_.mixed_dim()));
    BF_TRY(mix_latent_heads({compute, config_, layer_, shard_, batch, rotary, cache_layer, cache}, *latent_, a, mixed));
    return mixed;
  }
  trace::Scope scope(trace::Zone::kQkv);
  BF_ASSIGN_OR_RETURN(float* mixed, allocate_floats(compute, rows, shard_.mixed_dim()));
  BF_ASSIGN_OR_RETURN(float* q, allocate_floats(compute, rows, shard_.q_rows.size()));
  BF_ASSIGN_OR_RETURN(float* k, allocate_floats(compute, rows, shard_.k_rows.size()));
  BF_ASSIGN_OR_RETURN(float* v, allocate_floats(compute, rows, shard_.kv_dim()));
  const SliceBorders whole = SliceBorders::single(config_.model_dim);
  const std::array qkv{LinearJob{&q_.matrix, &a, whole, q_.bias_or_null(), nullptr, q},
                       LinearJob{&k_.matrix, &a, whole, k_.bias_or_null(), nullptr, k},
                       LinearJob{&v_.matrix, &a, whole, v_.bias_or_null(), nullptr, v}};
  run_linear(*compute.kernels, *compute.team, qkv, scope);
  if (config_.qk_norm != QkNorm::kNone) {
    BF_ASSIGN_OR_RETURN(q, norm_queries_or_keys(compute, config_, {q_norm_, rows, shard_.q_rows, shard_.q()}, q));
    BF_ASSIGN_OR_RETURN(k, norm_queries_or_keys(compute, config_, {k_norm_, rows, shard_.k_rows, shard_.kv()}, k));
  }
  rotate_and_store(compute, config_, layer_, shard_, batch, rotary, cache_layer, cache, {q, k, v});
  const std::int64_t head_dim = config_.head_dim;
  BF_TRY(attend(compute, config_, layer_, shard_, batch, cache_layer, cache, {q, shard_.q_dim(), head_dim},
                {mixed, shard_.mixed_dim(), head_dim}));
  return mixed;
}

Status Block::mlp(const Compute& compute, std::int64_t rows, float* input, float* x) const {
  if (experts_) {
    BF_ASSIGN_OR_RETURN(float* y, allocate_floats(compute, rows, config_.model_dim));
    clear_rows(rows, config_.model_dim, y);
    BF_TRY(experts_->forward(compute, rows, input, y));
    add_result(compute, DividedMatmul::kMlpDown, rows, y, x);
    return {};
  }
  const bool gated = config_.mlp == MlpKind::kGated;
  const std::int64_t ff_dim = shard_.ff.size();
  BF_ASSIGN_OR_RETURN(const auto a,
                      prepared_rows(compute, rows, config_.model_dim, input, row_form({&up_.matrix, &gate_.matrix})));
  trace::Scope scope(gated ? trace::Zone::kGateUp : trace::Zone::kUp);
  BF_ASSIGN_OR_RETURN(float* up, allocate_floats(compute, rows, ff_dim));
  BF_ASSIGN_OR_RETURN(float* gate, allocate_floats(compute, rows, gated ? ff_dim : 0));
  BF_ASSIGN_OR_RETURN(const auto h, allocate_activations(*compute.arena, rows, ff_dim, up));
  if (ff_dim > 0) {
    const SliceBorders whole = SliceBorders::single(config_.model_dim);
    const std::array gate_up{LinearJob{&up_.matrix, &a, whole, up_.bias_or_null(), nullptr, up},
                             LinearJob{&gate_.matrix, &a, whole, gate_.bias_or_null(), nullptr, gate}};
    run_linear(*compute.kernels, *compute.team, std::span(gate_up).first(gated ? 2 : 1), scope);
  } else {
    scope.drop();
  }
  const MlpActivation kind{
      .mlp = config_.mlp, .activation = config_.activation, .form = row_form(down_.matrix, mlp_slices_, shard_.slices)};
  activate_rows(compute, kind, h, gate, up);
  return add_output(compute, DividedMatmul::kMlpDown, h, x);
}

const PackedMatrix* Block::matrix(std::string_view name) const {
  if (experts_ && name.starts_with("ffn_")) return experts_->matrix(name);
  const std::array<std::pair<std::string_view, const LinearWeights*>, 7> all{{{"attn_q", &q_},
                                                                              {"attn_k", &k_},
                                                                              {"attn_v", &v_},
                                                                              {"attn_output", &attn_output_},
                                                                              {"ffn_gate", &gate_},
                                                                              {"ffn_up", &up_},
                                                                              {"ffn_down", &down_}}};
  if (latent_ != nullptr) {
    if (name == "attn_q_a") return &latent_->query_down.matrix;
    if (name == "attn_q" || name == "attn_q_b") return &latent_->query.matrix;
    if (name == "attn_kv_a_mqa") return &latent_->latent.matrix;
  }
  for (const auto& [known, linear] : all) {
    if (known == name) return &linear->matrix;
  }
  return cross_ != nullptr ? cross_->matrix(name) : nullptr;
}

std::uint64_t Block::packed_bytes() const {
  std::uint64_t bytes = 0;
  for (const LinearWeights* linear : {&q_, &k_, &v_, &attn_output_, &gate_, &up_, &down_}) {
    bytes += linear->bytes();
  }
  bytes += layer_.sinks.size() * sizeof(float);
  if (layer_.biases != nullptr) bytes += layer_.biases->bytes();
  if (cross_ != nullptr) bytes += cross_->packed_bytes();
  if (latent_ != nullptr) bytes += latent_->packed_bytes();
  if (experts_) bytes += experts_->packed_bytes();
  bytes += (q_norm_.size() + k_norm_.size()) * sizeof(float);
  for (const NormWeights* norm : {&attn_norm_, &ffn_norm_, &encoder_norm_, &post_attention_norm_, &post_ffw_norm_}) {
    bytes += (norm->weight.size() + norm->bias.size()) * sizeof(float);
  }
  return bytes;
}

}  // namespace butterfly
