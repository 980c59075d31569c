#include "butterfly/model/block.h"

#include <array>
#include <cstring>

#include "butterfly/model/attention.h"
#include "butterfly/model/rotary.h"
#include "butterfly/tensor/half.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

Result<std::vector<float>> load_vector(const WeightSource& source, const std::string& name, std::int64_t size) {
  BF_ASSIGN_OR_RETURN(const WeightView view, find_checked(source, {name, DType::kF32, 1, size, 0}));
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    switch (view.type) {
      case DType::kF32:
        std::memcpy(&values[i], view.bytes.data() + 4 * i, 4);
        break;
      case DType::kF16:
      case DType::kBF16:
        std::memcpy(&half, view.bytes.data() + 2 * i, 2);
        values[i] = view.type == DType::kF16 ? half_to_float(half) : bfloat16_to_float(half);
        break;
      default:
        return make_error(ErrorCode::kUnsupported, "{} is stored as {}, a vector must be f32, f16 or bf16", name,
                          to_string(view.type));
    }
  }
  return values;
}

Result<LinearWeights> load_linear(const WeightSource& source, const std::string& name, std::int64_t rows,
                                  std::int64_t cols, bool with_bias, ThreadTeam& team) {
  LinearWeights linear;
  BF_ASSIGN_OR_RETURN(const WeightView view, find_checked(source, {name + ".weight", DType::kF32, rows, cols, 0}));
  {
    const trace::Scope scope(trace::Zone::kModelPack);
    BF_ASSIGN_OR_RETURN(linear.matrix, PackedMatrix::pack({view.type, view.rows, view.cols, view.bytes}, team));
  }
  source.release(view);
  if (with_bias) {
    BF_ASSIGN_OR_RETURN(linear.bias, load_vector(source, name + ".bias", rows));
  }
  return linear;
}

Result<NormWeights> load_norm(const WeightSource& source, const std::string& name, const ModelConfig& config) {
  NormWeights norm;
  BF_ASSIGN_OR_RETURN(norm.weight, load_vector(source, name + ".weight", config.model_dim));
  if (config.norm_bias) {
    BF_ASSIGN_OR_RETURN(norm.bias, load_vector(source, name + ".bias", config.model_dim));
  }
  return norm;
}

void apply_norm(const Compute& compute, const ModelConfig& config, const NormWeights& norm, std::int64_t rows,
                const float* x, float* y) {
  const std::int64_t dim = config.model_dim;
  for_each_row(compute, rows, dim, [&](std::int64_t row) {
    if (config.norm == NormKind::kRms) {
      compute.kernels->rms_norm(x + row * dim, norm.weight.data(), config.norm_epsilon, dim, y + row * dim);
    } else {
      const float* bias = norm.bias.empty() ? nullptr : norm.bias.data();
      compute.kernels->layer_norm(x + row * dim, norm.weight.data(), bias, config.norm_epsilon, dim, y + row * dim);
    }
  });
}

Result<ActivationRows> allocate_activations(Arena& arena, std::int64_t rows, std::int64_t cols, float* values) {
  ActivationRows x;
  x.rows = rows;
  x.cols = cols;
  x.values = values;
  if (cols % kQuantBlock != 0) return x;
  const auto count = static_cast<std::uint64_t>(rows * cols);
  BF_ASSIGN_OR_RETURN(const auto quants, arena.allocate_array<std::int8_t>(count));
  BF_ASSIGN_OR_RETURN(const auto scales, arena.allocate_array<float>(count / kQuantBlock));
  BF_ASSIGN_OR_RETURN(const auto sums, arena.allocate_array<std::int32_t>(count / kQuantBlock));
  x.quants = quants.data();
  x.scales = scales.data();
  x.sums = sums.data();
  return x;
}

Result<RotaryRows> rotary_rows(const Compute& compute, std::span<const double> frequencies, const Batch& batch) {
  RotaryRows rows;
  const std::size_t pairs = frequencies.size();
  const auto count = static_cast<std::uint64_t>(batch.rows()) * pairs;
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

Result<Block> Block::load(const ModelConfig& config, int layer, const WeightSource& source, ThreadTeam& team) {
  const trace::Scope scope(trace::Zone::kModelLoad, static_cast<std::uint32_t>(layer));
  Block block;
  block.config_ = config;
  const std::string prefix = fmt::format("blk.{}.", layer);
  const auto linear = [&](LinearWeights& target, const char* name, std::int64_t rows, std::int64_t cols,
                          bool bias) -> Status {
    BF_ASSIGN_OR_RETURN(target, load_linear(source, prefix + name, rows, cols, bias, team));
    return {};
  };
  BF_ASSIGN_OR_RETURN(block.attn_norm_, load_norm(source, prefix + "attn_norm", config));
  BF_ASSIGN_OR_RETURN(block.ffn_norm_, load_norm(source, prefix + "ffn_norm", config));
  BF_TRY(linear(block.q_, "attn_q", config.q_dim(), config.model_dim, config.qkv_bias));
  BF_TRY(linear(block.k_, "attn_k", config.kv_dim(), config.model_dim, config.qkv_bias));
  BF_TRY(linear(block.v_, "attn_v", config.kv_dim(), config.model_dim, config.qkv_bias));
  BF_TRY(linear(block.attn_output_, "attn_output", config.model_dim, config.q_dim(), config.attention_output_bias));
  if (config.mlp == MlpKind::kGated) {
    BF_TRY(linear(block.gate_, "ffn_gate", config.ff_dim, config.model_dim, config.mlp_bias));
  }
  BF_TRY(linear(block.up_, "ffn_up", config.ff_dim, config.model_dim, config.mlp_bias));
  BF_TRY(linear(block.down_, "ffn_down", config.model_dim, config.ff_dim, config.mlp_bias));
  return block;
}

Status Block::forward(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                      KvCache& cache, float* x) const {
  BF_TRY(attention(compute, batch, rotary, cache_layer, cache, x));
  return mlp(compute, batch.rows(), x);
}

namespace {

/// What a sub-layer reads: norm(x) in new memory where the norm comes before, else x itself.
Result<float*> sublayer_input(const Compute& compute, const ModelConfig& config, const NormWeights& norm,
                              std::int64_t rows, float* x) {
  if (config.norm_place == NormPlace::kAfter) return x;
  BF_ASSIGN_OR_RETURN(const auto normed,
                      compute.arena->allocate_array<float>(static_cast<std::uint64_t>(rows * config.model_dim)));
  apply_norm(compute, config, norm, rows, x, normed.data());
  return normed.data();
}

/// Quantises the rows where one of the matrices that read them is quantised.
void prepare_rows(const Compute& compute, const ActivationRows& x, bool quantised) {
  if (!quantised) return;
  for_each_row(compute, x.rows, x.cols, [&](std::int64_t row) { quantize_activation_row(*compute.kernels, x, row); });
}

Result<float*> allocate_floats(const Compute& compute, std::int64_t rows, std::int64_t cols) {
  BF_ASSIGN_OR_RETURN(const auto values, compute.arena->allocate_array<float>(static_cast<std::uint64_t>(rows * cols)));
  return values.data();
}

}  // namespace

Status Block::attention(const Compute& compute, const Batch& batch, const RotaryRows& rotary, int cache_layer,
                        KvCache& cache, float* x) const {
  const std::int64_t rows = batch.rows();
  BF_ASSIGN_OR_RETURN(float* input, sublayer_input(compute, config_, attn_norm_, rows, x));
  BF_ASSIGN_OR_RETURN(const auto a, allocate_activations(*compute.arena, rows, config_.model_dim, input));
  prepare_rows(compute, a, q_.matrix.quantised() || k_.matrix.quantised() || v_.matrix.quantised());
  BF_ASSIGN_OR_RETURN(float* q, allocate_floats(compute, rows, config_.q_dim()));
  BF_ASSIGN_OR_RETURN(float* k, allocate_floats(compute, rows, config_.kv_dim()));
  BF_ASSIGN_OR_RETURN(float* v, allocate_floats(compute, rows, config_.kv_dim()));
  const LaneBorders whole = LaneBorders::single(config_.model_dim);
  const std::array qkv{LinearJob{&q_.matrix, &a, whole, q_.bias_or_null(), nullptr, q},
                       LinearJob{&k_.matrix, &a, whole, k_.bias_or_null(), nullptr, k},
                       LinearJob{&v_.matrix, &a, whole, v_.bias_or_null(), nullptr, v}};
  run_linear(*compute.kernels, *compute.team, qkv);

  rotate_and_store(compute, config_, batch, rotary, cache_layer, cache, {q, k, v});
  BF_ASSIGN_OR_RETURN(float* mixed, allocate_floats(compute, rows, config_.q_dim()));
  BF_TRY(attend(compute, config_, batch, cache_layer, cache, q, mixed));

  BF_ASSIGN_OR_RETURN(const auto o, allocate_activations(*compute.arena, rows, config_.q_dim(), mixed));
  prepare_rows(compute, o, attn_output_.matrix.quantised());
  const LaneBorders lanes = LaneBorders::canonical(config_.q_dim(), config_.head_dim);
  const LinearJob output{&attn_output_.matrix, &o, lanes, attn_output_.bias_or_null(), x, x};
  run_linear(*compute.kernels, *compute.team, std::span(&output, 1));
  if (config_.norm_place == NormPlace::kAfter) apply_norm(compute, config_, attn_norm_, rows, x, x);
  return {};
}

Status Block::mlp(const Compute& compute, std::int64_t rows, float* x) const {
  const bool gated = config_.mlp == MlpKind::kGated;
  const std::int64_t ff_dim = config_.ff_dim;
  BF_ASSIGN_OR_RETURN(float* input, sublayer_input(compute, config_, ffn_norm_, rows, x));
  BF_ASSIGN_OR_RETURN(const auto a, allocate_activations(*compute.arena, rows, config_.model_dim, input));
  prepare_rows(compute, a, up_.matrix.quantised() || (gated && gate_.matrix.quantised()));
  BF_ASSIGN_OR_RETURN(float* up, allocate_floats(compute, rows, ff_dim));
  float* gate = nullptr;
  if (gated) {
    BF_ASSIGN_OR_RETURN(gate, allocate_floats(compute, rows, ff_dim));
  }
  const LaneBorders whole = LaneBorders::single(config_.model_dim);
  const std::array gate_up{LinearJob{&up_.matrix, &a, whole, up_.bias_or_null(), nullptr, up},
                           LinearJob{&gate_.matrix, &a, whole, gate_.bias_or_null(), nullptr, gate}};
  run_linear(*compute.kernels, *compute.team, std::span(gate_up).first(gated ? 2 : 1));

  BF_ASSIGN_OR_RETURN(const auto h, allocate_activations(*compute.arena, rows, ff_dim, up));
  const bool silu = config_.activation == Activation::kSilu;
  const Kernels& kernels = *compute.kernels;
  for_each_row(compute, rows, 4 * ff_dim, [&](std::int64_t row) {
    float* y = up + row * ff_dim;
    if (gated) {
      (silu ? kernels.silu_mul : kernels.gelu_mul)(gate + row * ff_dim, y, ff_dim, y);
    } else {
      (silu ? kernels.silu : kernels.gelu)(y, ff_dim, y);
    }
    if (down_.matrix.quantised()) quantize_activation_row(kernels, h, row);
  });
  const LinearJob down{&down_.matrix, &h, LaneBorders::canonical(ff_dim, 1), down_.bias_or_null(), x, x};
  run_linear(kernels, *compute.team, std::span(&down, 1));
  if (config_.norm_place == NormPlace::kAfter) apply_norm(compute, config_, ffn_norm_, rows, x, x);
  return {};
}

std::uint64_t Block::packed_bytes() const {
  std::uint64_t bytes = 0;
  for (const LinearWeights* linear : {&q_, &k_, &v_, &attn_output_, &gate_, &up_, &down_}) {
    bytes += linear->matrix.bytes() + linear->bias.size() * sizeof(float);
  }
  for (const NormWeights* norm : {&attn_norm_, &ffn_norm_}) {
    bytes += (norm->weight.size() + norm->bias.size()) * sizeof(float);
  }
  return bytes;
}

}  // namespace butterfly
