// One transformer block of a TrainableTransformer, forward and backward: norm, attention, norm, MLP, each added to the
// residual stream. Sums with the residual stream are taken by the next norm, so a block begins with what the one before
// left to add. Immutable after make_block().
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/train_context.h"
#include "butterfly/model/training/train_memory.h"
#include "butterfly/model/training/train_projection.h"

namespace butterfly {

struct TrainBlock {
  NormParameters attn_norm{};
  Projection qkv{};
  Projection attn_output{};
  NormParameters ffn_norm{};
  Projection ffn_in{};  // gate and up, or up
  Projection ffn_down{};
  ParameterRange attention_range{};  // in the flat arrays, gaps included
  ParameterRange ffn_range{};
};

/// Errors: kNotFound.
Result<TrainBlock> make_block(const ModelConfig& config, const Fusion& fusion, const ParameterSet& parameters,
                              int layer);

/// The norm `name`, whose bias may not exist. Errors: kNotFound.
Result<NormParameters> make_norm(const ParameterSet& parameters, const std::string& name);

/// The residual stream so far: stream + delta, [rows, model_dim] each; delta may be null.
struct ResidualSum {
  const float* stream = nullptr;
  const float* delta = nullptr;
};

/// Leaves in `activations` what backward needs. Returns the stream behind the block: its `middle`, and in
/// scratch.branch what is to be added. Errors: those of Gemm, here and below.
Result<ResidualSum> forward_block(const TrainContext& context, const TrainBlock& block,
                                  const BlockActivations& activations, const TrainScratch& scratch,
                                  const ResidualSum& before);

/// Fills what options.recompute did not keep, from what it did.
Status recompute_block(const TrainContext& context, const TrainBlock& block, const BlockActivations& activations,
                       const TrainScratch& scratch);

/// scratch.dx (and dx_operand): in, the gradient of the stream behind the MLP; out, of that before it.
/// Adds to the gradients of ffn_range but for the bias of ffn_down, and to the bias of attn_output.
Status backward_ffn(const TrainContext& context, const TrainBlock& block, const BlockActivations& activations,
                    const TrainScratch& scratch);

/// The same for attention. `bias_below`: of the matmul that was added last before this block.
Status backward_attention(const TrainContext& context, const TrainBlock& block, const BlockActivations& activations,
                          const TrainScratch& scratch, std::int64_t bias_below);

}  // namespace butterfly
