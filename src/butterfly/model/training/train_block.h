// One transformer block of a TrainableTransformer, forward and backward: norm, attention, norm, MLP, each added to the
// residual stream, one after the other or both at once. Sums with the residual stream are taken by the next norm, so a
// block begins with what the one before left to add. Immutable after make_block().
#pragma once

#include <optional>

#include "butterfly/base/result.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/model/training/passes/train_projection.h"
#include "butterfly/model/training/train_memory.h"

namespace butterfly {

struct TrainBlock {
  int layer = 0;
  AttentionKind attention{};
  NormParameters attn_norm{};  // without a weight where the model has no such norm, as the others
  Projection qkv{};
  Projection attn_output{};
  NormParameters post_attention_norm{};
  NormParameters ffn_norm{};
  Projection ffn_in{};  // gate and up, or up; without matmuls in a layer with experts
  Projection ffn_down{};
  std::optional<TrainExperts> experts{};
  NormParameters post_ffw_norm{};
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

/// Where a layer's router counts; null: nothing is counted.
struct LayerTally {
  std::int64_t* tokens = nullptr;   // [experts]
  double* probabilities = nullptr;  // [experts]
};

/// Leaves in `activations` what backward needs. Returns the stream behind the block: its `middle`, or its input in a
/// parallel block, and in scratch.branch what is to be added. Errors: those of Gemm, here and below.
Result<ResidualSum> forward_block(const TrainContext& context, const TrainBlock& block,
                                  const BlockActivations& activations, const TrainScratch& scratch,
                                  const ResidualSum& before, const LayerTally& tally);

/// Fills what options.recompute did not keep, from what it did.
Status recompute_block(const TrainContext& context, const TrainBlock& block, const BlockActivations& activations,
                       const TrainScratch& scratch);

/// The bias whose gradient is the sum of the stream's behind the block, and is taken by who makes that: ffn_down's,
/// where what the MLP gives goes into the sum as it is.
std::int64_t bias_of_output(const TrainContext& context, const TrainBlock& block);

/// scratch.dx (and dx_operand): in, the gradient of the stream behind the MLP; out, of that before it. In a parallel
/// block it stays, and scratch.branch_of_ffn takes what backward_attention() adds to it.
/// Adds to the gradients of ffn_range but for bias_of_output() and, in a parallel block, its norm's, and to the bias of
/// attn_output. scratch.balance is of the load-balance loss.
Status backward_ffn(const TrainContext& context, const TrainBlock& block, const BlockActivations& activations,
                    const TrainScratch& scratch);

/// The same for attention. `bias_below`: of the matmul that was added last before this block.
Status backward_attention(const TrainContext& context, const TrainBlock& block, const BlockActivations& activations,
                          const TrainScratch& scratch, std::int64_t bias_below);

}  // namespace butterfly
