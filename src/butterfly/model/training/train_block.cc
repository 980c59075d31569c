#include "butterfly/model/training/train_block.h"

#include <array>
#include <string>

#include "butterfly/model/training/passes/train_attention.h"
#include "butterfly/model/training/passes/train_pass.h"
#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

OutputNormArgs attention_output_norm(const TrainBlock& block, const BlockActivations& a, const TrainScratch& scratch) {
  return {.parameters = block.post_attention_norm,
          .x = a.attention_out,
          .statistics = a.post_attention_norm,
          .y = scratch.branch};
}

OutputNormArgs ffn_output_norm(const TrainBlock& block, const BlockActivations& a, const TrainScratch& scratch) {
  return {.parameters = block.post_ffw_norm, .x = a.ffn_out, .statistics = a.post_ffw_norm, .y = scratch.branch};
}

/// From the block's input to what attention adds, in scratch.branch.
Status forward_attention(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                         const TrainScratch& scratch, const ResidualSum& before) {
  residual_norm(context, {.parameters = block.attn_norm,
                          .x = before.stream,
                          .delta = before.delta,
                          .sum = a.input,
                          .statistics = a.attn_norm,
                          .normed = a.attn_normed});
  BF_TRY(project(context, block.qkv, a.attn_normed, a.attention.qkv));
  BF_TRY(attention(context, block.attention, a.attention));
  float* out = a.attention_out == nullptr ? scratch.branch : a.attention_out;
  BF_TRY(project(context, block.attn_output, a.attention.mixed_operand, out));
  // In a parallel block the sum of both is scaled.
  if (!context.config->parallel_block) output_norm(context, attention_output_norm(block, a, scratch));
  return {};
}

/// What the MLP reads.
void forward_ffn_norm(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                      const TrainScratch& scratch) {
  const bool parallel = context.config->parallel_block;
  if (context.config->shared_norm) return;
  residual_norm(context, {.parameters = block.ffn_norm,
                          .x = a.input,
                          .delta = parallel ? nullptr : scratch.branch,
                          .sum = parallel ? nullptr : a.middle,
                          .statistics = a.ffn_norm,
                          .normed = a.ffn_normed});
}

/// Everything that the MLP does with what it reads, but for a dense one's last matmul.
Status forward_ffn_to_hidden(const TrainContext& context, const TrainBlock& block, const BlockActivations& a) {
  BF_TRY(project(context, block.ffn_in, a.ffn_normed, a.mlp.in));
  activation(context, a.mlp);
  return {};
}

/// To what is added to the stream, in scratch.branch.
Status forward_ffn(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                   const TrainScratch& scratch, const LayerTally& tally) {
  const Accumulate accumulate = context.config->parallel_block ? Accumulate::kYes : Accumulate::kNo;
  float* out = a.ffn_out == nullptr ? scratch.branch : a.ffn_out;
  if (block.experts) {
    BF_TRY(forward_experts(context, *block.experts, a.experts,
                           {.x = a.ffn_normed,
                            .y = out,
                            .accumulate = accumulate,
                            .tokens = tally.tokens,
                            .probabilities = tally.probabilities}));
  } else {
    BF_TRY(forward_ffn_to_hidden(context, block, a));
    BF_TRY(project(context, block.ffn_down, a.mlp.hidden, out, {.accumulate = accumulate}));
  }
  output_norm(context, ffn_output_norm(block, a, scratch));
  return {};
}

/// Whether the backward pass needs nothing of what the MLP gives.
bool ends_at_hidden(const TrainContext& context, const TrainBlock& block) {
  return !block.experts && !context.config->norms_outputs();
}

/// The gradient of what attention or MLP gives: of the sum that it goes into, through its norm and scale.
struct BranchGradient {
  const float* values = nullptr;
  const void* operand = nullptr;
};
BranchGradient branch_gradient(const TrainContext& context, const OutputNormArgs& forward, const TrainScratch& scratch,
                               const std::array<std::int64_t, 2>& biases) {
  if (!context.scales_outputs()) return {scratch.dx, scratch.dx_operand};
  output_norm_backward(context, {.forward = forward,
                                 .dy = scratch.dx,
                                 .dx = scratch.dbranch,
                                 .dx_operand = scratch.dbranch_operand,
                                 .biases = biases});
  return {scratch.dbranch, scratch.dbranch_operand};
}

/// From dy to the gradient of what the MLP reads, in `dx`.
Status backward_mlp(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                    const TrainScratch& scratch, const BranchGradient& dy, float* dx) {
  if (block.experts) {
    const float* slopes = scratch.balance + block.layer * context.router_dim();
    const float* balance = context.options.router_aux_loss > 0.0 ? slopes : nullptr;
    return backward_experts(
        context, *block.experts, a.experts, scratch.experts,
        {.x = a.ffn_normed, .dy = dy.values, .dy_operand = dy.operand, .balance = balance, .dx = dx});
  }
  BF_TRY(project_backward(context, block.ffn_down, dy.operand, a.mlp.hidden, scratch.wide));
  const bool gated = context.config->mlp == MlpKind::kGated;
  const std::int64_t gate_bias = gated && context.config->mlp_bias ? block.ffn_in.parts[0].bias : kNoParameter;
  std::int64_t up_bias = block.ffn_in.parts[static_cast<std::size_t>(block.ffn_in.count - 1)].bias;
  // Joined, the bias of `up` is the second half of the matmul's.
  if (gated && up_bias != kNoParameter && block.ffn_in.count == 1) up_bias += context.config->ff_dim;
  activation_backward(
      context,
      {.forward = a.mlp, .dhidden = scratch.wide, .din = scratch.dffn_in, .gate_bias = gate_bias, .up_bias = up_bias});
  return project_backward(context, block.ffn_in, scratch.dffn_in, a.ffn_normed, dx);
}

/// In a parallel block the gradient of one sum is that of both branches.
BranchGradient parallel_gradient(const TrainContext& context, const TrainScratch& scratch) {
  return context.scales_outputs() ? BranchGradient{scratch.dbranch, scratch.dbranch_operand}
                                  : BranchGradient{scratch.dx, scratch.dx_operand};
}

/// Both norms read the block's input; a shared one takes the sum of the gradients.
void backward_parallel_norms(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                             const TrainScratch& scratch, std::int64_t bias_below) {
  const std::int64_t n = context.config->model_dim;
  const bool shared = context.config->shared_norm;
  if (shared) {
    const trace::Scope scope(
        trace::Zone::kResidual,
        work_of({.rows = context.rows(), .cols = n, .bytes = 3 * sizeof(float), .pass = trace::Pass::kInputGradient}));
    context.for_rows(context.rows(), [&](int, std::int64_t row) {
      context.kernels->add(scratch.branch_of_ffn + row * n, n, scratch.branch + row * n);
    });
  } else {
    norm_backward(context, {.parameters = block.ffn_norm,
                            .x = a.input,
                            .statistics = a.ffn_norm,
                            .dy = scratch.branch_of_ffn,
                            .dx = scratch.dx,
                            .dx_operand = scratch.dx_operand});
  }
  norm_backward(context, {.parameters = block.attn_norm,
                          .x = a.input,
                          .statistics = a.attn_norm,
                          .dy = scratch.branch,
                          .dx = scratch.dx,
                          .dx_operand = scratch.dx_operand,
                          .bias_below = bias_below});
}

/// The parameters of a block in forward order: attention's, then those from the first of the MLP on.
Status find_ranges(const ParameterSet& parameters, const std::string& prefix, TrainBlock& block) {
  std::int64_t begin = -1, middle = -1, end = parameters.padded_size();
  for (const Parameter& parameter : parameters.list()) {
    const bool inside = parameter.name.starts_with(prefix);
    if (inside && begin < 0) begin = parameter.offset;
    if (inside && middle < 0 && parameter.name.starts_with(prefix + "ffn_")) middle = parameter.offset;
    if (begin >= 0 && !inside) {
      end = parameter.offset;
      break;
    }
  }
  if (begin < 0 || middle < 0) return make_error(ErrorCode::kNotFound, "the model has no parameters {}*", prefix);
  block.attention_range = {begin, middle};
  block.ffn_range = {middle, end};
  return {};
}

/// Norms that the model does not have stay without a weight.
Status find_norms(const ModelConfig& config, const ParameterSet& parameters, const std::string& prefix,
                  TrainBlock& block) {
  if (config.norm_place != NormPlace::kOutput) {
    BF_ASSIGN_OR_RETURN(block.attn_norm, make_norm(parameters, prefix + "attn_norm"));
    if (!config.shared_norm) {
      BF_ASSIGN_OR_RETURN(block.ffn_norm, make_norm(parameters, prefix + "ffn_norm"));
    }
  }
  if (config.norms_outputs()) {
    BF_ASSIGN_OR_RETURN(block.post_attention_norm, make_norm(parameters, prefix + "post_attention_norm"));
    BF_ASSIGN_OR_RETURN(block.post_ffw_norm, make_norm(parameters, prefix + "post_ffw_norm"));
  }
  if (config.qk_norm == QkNorm::kNone) return {};
  BF_ASSIGN_OR_RETURN(const NormParameters q, make_norm(parameters, prefix + "attn_q_norm"));
  BF_ASSIGN_OR_RETURN(const NormParameters k, make_norm(parameters, prefix + "attn_k_norm"));
  block.attention.q_norm = q.weight;
  block.attention.k_norm = k.weight;
  return {};
}

}  // namespace

Result<NormParameters> make_norm(const ParameterSet& parameters, const std::string& name) {
  BF_ASSIGN_OR_RETURN(const Parameter* weight, parameters.find(name + ".weight"));
  const auto bias = parameters.find(name + ".bias");
  return NormParameters{.weight = weight->offset, .bias = bias ? (*bias)->offset : kNoParameter};
}

Result<TrainBlock> make_block(const ModelConfig& config, const Fusion& fusion, const ParameterSet& parameters,
                              int layer) {
  const std::string name = "blk." + std::to_string(layer) + ".";
  const Join join_qkv = fusion.qkv ? Join::kYes : Join::kNo;
  const Join join_ffn = fusion.swiglu ? Join::kYes : Join::kNo;
  TrainBlock block;
  block.layer = layer;
  block.attention.rope = config.rope_of(layer);
  block.attention.window = config.window_of(layer);
  BF_TRY(find_norms(config, parameters, name, block));
  BF_TRY(find_ranges(parameters, name, block));
  BF_ASSIGN_OR_RETURN(block.qkv,
                      make_projection(parameters, {name + "attn_q", name + "attn_k", name + "attn_v"}, join_qkv));
  BF_ASSIGN_OR_RETURN(block.attn_output, make_projection(parameters, {name + "attn_output"}, Join::kNo));
  if (config.has_experts(layer)) {
    BF_ASSIGN_OR_RETURN(block.experts, make_experts(config, fusion, parameters, name));
    return block;
  }
  if (config.mlp == MlpKind::kGated) {
    BF_ASSIGN_OR_RETURN(block.ffn_in, make_projection(parameters, {name + "ffn_gate", name + "ffn_up"}, join_ffn));
  } else {
    BF_ASSIGN_OR_RETURN(block.ffn_in, make_projection(parameters, {name + "ffn_up"}, Join::kNo));
  }
  BF_ASSIGN_OR_RETURN(block.ffn_down, make_projection(parameters, {name + "ffn_down"}, Join::kNo));
  return block;
}

Result<ResidualSum> forward_block(const TrainContext& context, const TrainBlock& block,
                                  const BlockActivations& activations, const TrainScratch& scratch,
                                  const ResidualSum& before, const LayerTally& tally) {
  BF_TRY(forward_attention(context, block, activations, scratch, before));
  forward_ffn_norm(context, block, activations, scratch);
  BF_TRY(forward_ffn(context, block, activations, scratch, tally));
  const float* stream = context.config->parallel_block ? activations.input : activations.middle;
  return ResidualSum{.stream = stream, .delta = scratch.branch};
}

Status recompute_block(const TrainContext& of_backward, const TrainBlock& block, const BlockActivations& a,
                       const TrainScratch& scratch) {
  const TrainContext context = of_backward.recomputing();
  switch (context.options.recompute) {
    case Recompute::kNone:
      return {};
    case Recompute::kBlock:
      BF_TRY(forward_attention(context, block, a, scratch, {.stream = a.input}));
      forward_ffn_norm(context, block, a, scratch);
      if (ends_at_hidden(context, block)) return forward_ffn_to_hidden(context, block, a);
      return forward_ffn(context, block, a, scratch, {});
    case Recompute::kSelective:
      break;
  }
  residual_norm(context,
                {.parameters = block.attn_norm, .x = a.input, .statistics = a.attn_norm, .normed = a.attn_normed});
  pack_mixed(context, a.attention);
  if (!context.config->shared_norm) {
    residual_norm(context, {.parameters = block.ffn_norm,
                            .x = context.config->parallel_block ? a.input : a.middle,
                            .statistics = a.ffn_norm,
                            .normed = a.ffn_normed});
  }
  block.experts ? derive_experts(context, a.experts, a.ffn_normed) : activation(context, a.mlp);
  return {};
}

std::int64_t bias_of_output(const TrainContext& context, const TrainBlock& block) {
  const bool plain = !context.scales_outputs() && !context.config->parallel_block;
  return plain ? block.ffn_down.parts[0].bias : kNoParameter;
}

Status backward_ffn(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                    const TrainScratch& scratch) {
  const std::int64_t down_bias = block.ffn_down.parts[0].bias;
  const std::int64_t output_bias = block.attn_output.parts[0].bias;
  if (context.config->parallel_block) {
    const BranchGradient dy = branch_gradient(context, {}, scratch, {down_bias, output_bias});
    for (const std::int64_t bias : {down_bias, output_bias}) {
      const std::int64_t n = context.config->model_dim;
      if (context.scales_outputs() || bias == kNoParameter) continue;
      add_column_sums(context, {.x = scratch.dx, .stride = n, .count = n, .offset = bias});
    }
    return backward_mlp(context, block, a, scratch, dy, scratch.branch_of_ffn);
  }
  const BranchGradient dy =
      branch_gradient(context, ffn_output_norm(block, a, scratch), scratch, {down_bias, kNoParameter});
  BF_TRY(backward_mlp(context, block, a, scratch, dy, scratch.branch));
  norm_backward(context, {.parameters = block.ffn_norm,
                          .x = a.middle,
                          .statistics = a.ffn_norm,
                          .dy = scratch.branch,
                          .dx = scratch.dx,
                          .dx_operand = scratch.dx_operand,
                          .bias_below = context.scales_outputs() ? kNoParameter : output_bias});
  return {};
}

Status backward_attention(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                          const TrainScratch& scratch, std::int64_t bias_below) {
  const bool parallel = context.config->parallel_block;
  const std::array<std::int64_t, 2> biases{block.attn_output.parts[0].bias, kNoParameter};
  const BranchGradient dy = parallel
                                ? parallel_gradient(context, scratch)
                                : branch_gradient(context, attention_output_norm(block, a, scratch), scratch, biases);
  BF_TRY(project_backward(context, block.attn_output, dy.operand, a.attention.mixed_operand, scratch.wide));
  BF_TRY(attention_backward(context, block.attention, a.attention, scratch.attention));
  std::int64_t column = 0;
  for (int i = 0; i < block.qkv.count; ++i) {
    const Projection::Part& part = block.qkv.parts[static_cast<std::size_t>(i)];
    if (part.bias != kNoParameter) {
      add_column_sums(
          context,
          {.x = scratch.attention.dqkv + column, .stride = context.qkv_dim(), .count = part.rows, .offset = part.bias});
    }
    column += part.rows;
  }
  BF_TRY(project_backward(context, block.qkv, scratch.attention.dqkv_operand, a.attn_normed, scratch.branch));
  if (parallel) {
    backward_parallel_norms(context, block, a, scratch, bias_below);
    return {};
  }
  norm_backward(context, {.parameters = block.attn_norm,
                          .x = a.input,
                          .statistics = a.attn_norm,
                          .dy = scratch.branch,
                          .dx = scratch.dx,
                          .dx_operand = scratch.dx_operand,
                          .bias_below = bias_below});
  return {};
}

}  // namespace butterfly
