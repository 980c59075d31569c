#include "butterfly/model/training/train_block.h"

#include "butterfly/model/training/train_attention.h"
#include "butterfly/model/training/train_pass.h"

namespace butterfly {
namespace {

/// Everything up to the activation of the MLP.
Status forward_to_hidden(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                         const TrainScratch& scratch, const ResidualSum& before) {
  residual_norm(context, {.parameters = block.attn_norm,
                          .x = before.stream,
                          .delta = before.delta,
                          .sum = a.input,
                          .statistics = a.attn_norm,
                          .normed = a.attn_normed});
  BF_TRY(project(context, block.qkv, a.attn_normed, a.attention.qkv));
  BF_TRY(attention(context, a.attention));
  BF_TRY(project(context, block.attn_output, a.attention.mixed_operand, scratch.branch));
  residual_norm(context, {.parameters = block.ffn_norm,
                          .x = a.input,
                          .delta = scratch.branch,
                          .sum = a.middle,
                          .statistics = a.ffn_norm,
                          .normed = a.ffn_normed});
  BF_TRY(project(context, block.ffn_in, a.ffn_normed, a.mlp.in));
  activation(context, a.mlp);
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
  BF_ASSIGN_OR_RETURN(block.attn_norm, make_norm(parameters, name + "attn_norm"));
  BF_ASSIGN_OR_RETURN(block.qkv,
                      make_projection(parameters, {name + "attn_q", name + "attn_k", name + "attn_v"}, join_qkv));
  BF_ASSIGN_OR_RETURN(block.attn_output, make_projection(parameters, {name + "attn_output"}, Join::kNo));
  BF_ASSIGN_OR_RETURN(block.ffn_norm, make_norm(parameters, name + "ffn_norm"));
  if (config.mlp == MlpKind::kGated) {
    BF_ASSIGN_OR_RETURN(block.ffn_in, make_projection(parameters, {name + "ffn_gate", name + "ffn_up"}, join_ffn));
  } else {
    BF_ASSIGN_OR_RETURN(block.ffn_in, make_projection(parameters, {name + "ffn_up"}, Join::kNo));
  }
  BF_ASSIGN_OR_RETURN(block.ffn_down, make_projection(parameters, {name + "ffn_down"}, Join::kNo));
  std::int64_t end = parameters.padded_size();
  for (const Parameter& parameter : parameters.list()) {
    if (parameter.offset > block.ffn_down.parts[0].weight && !parameter.name.starts_with(name)) {
      end = parameter.offset;
      break;
    }
  }
  block.attention_range = {block.attn_norm.weight, block.ffn_norm.weight};
  block.ffn_range = {block.ffn_norm.weight, end};
  return block;
}

Result<ResidualSum> forward_block(const TrainContext& context, const TrainBlock& block,
                                  const BlockActivations& activations, const TrainScratch& scratch,
                                  const ResidualSum& before) {
  BF_TRY(forward_to_hidden(context, block, activations, scratch, before));
  BF_TRY(project(context, block.ffn_down, activations.mlp.hidden, scratch.branch));
  return ResidualSum{.stream = activations.middle, .delta = scratch.branch};
}

Status recompute_block(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                       const TrainScratch& scratch) {
  switch (context.options.recompute) {
    case Recompute::kNone:
      return {};
    case Recompute::kBlock:
      return forward_to_hidden(context, block, a, scratch, {.stream = a.input});
    case Recompute::kSelective:
      break;
  }
  residual_norm(context,
                {.parameters = block.attn_norm, .x = a.input, .statistics = a.attn_norm, .normed = a.attn_normed});
  pack_mixed(context, a.attention);
  residual_norm(context,
                {.parameters = block.ffn_norm, .x = a.middle, .statistics = a.ffn_norm, .normed = a.ffn_normed});
  activation(context, a.mlp);
  return {};
}

Status backward_ffn(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                    const TrainScratch& scratch) {
  BF_TRY(project_backward(context, block.ffn_down, scratch.dx_operand, a.mlp.hidden, scratch.wide));
  const bool gated = context.config->mlp == MlpKind::kGated;
  const std::int64_t gate_bias = gated && context.config->mlp_bias ? block.ffn_in.parts[0].bias : kNoParameter;
  std::int64_t up_bias = block.ffn_in.parts[static_cast<std::size_t>(block.ffn_in.count - 1)].bias;
  // Joined, the bias of `up` is the second half of the matmul's.
  if (gated && up_bias != kNoParameter && block.ffn_in.count == 1) up_bias += context.config->ff_dim;
  activation_backward(
      context,
      {.forward = a.mlp, .dhidden = scratch.wide, .din = scratch.dffn_in, .gate_bias = gate_bias, .up_bias = up_bias});
  BF_TRY(project_backward(context, block.ffn_in, scratch.dffn_in, a.ffn_normed, scratch.branch));
  norm_backward(context, {.parameters = block.ffn_norm,
                          .x = a.middle,
                          .statistics = a.ffn_norm,
                          .dy = scratch.branch,
                          .dx = scratch.dx,
                          .dx_operand = scratch.dx_operand,
                          .bias_below = block.attn_output.parts[0].bias});
  return {};
}

Status backward_attention(const TrainContext& context, const TrainBlock& block, const BlockActivations& a,
                          const TrainScratch& scratch, std::int64_t bias_below) {
  BF_TRY(project_backward(context, block.attn_output, scratch.dx_operand, a.attention.mixed_operand, scratch.wide));
  BF_TRY(attention_backward(context, a.attention, scratch.attention));
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
