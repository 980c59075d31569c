// The memory of a TrainableTransformer, planned once from shapes: what each block keeps for its backward pass, and what
// all blocks share. Recomputation is decided here alone: what is computed again lies in memory that the blocks share.
// Owner of everything its views point to.
#pragma once

#include <cstdint>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/training/passes/train_attention.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/model/training/passes/train_experts.h"
#include "butterfly/model/training/passes/train_pass.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/held.h"

namespace butterfly {

/// What a block's forward pass leaves behind. Operands are float or bf16, as the context says.
struct BlockActivations {
  float* input = nullptr;   // [rows, model_dim]: the residual stream before the block
  float* middle = nullptr;  // [rows, model_dim]: between attention and MLP
  NormStatistics attn_norm{};
  NormStatistics ffn_norm{};
  void* attn_normed = nullptr;  // operand [rows, model_dim]
  AttentionBuffers attention{};
  void* ffn_normed = nullptr;  // operand [rows, model_dim]; may be attn_normed
  ActivationArgs mlp{};        // its input, [rows, ffn_in_dim], and its output; of a dense layer
  ExpertActivations experts{};
  // What attention and MLP give, where it is normed.
  float* attention_out = nullptr;  // [rows, model_dim]
  float* ffn_out = nullptr;        // [rows, model_dim]
  NormStatistics post_attention_norm{};
  NormStatistics post_ffw_norm{};
};

/// What all blocks, the embedding and the head share.
struct TrainScratch {
  float* branch = nullptr;         // [rows, model_dim]: what a branch adds, or the gradient of its norm's output
  float* branch_of_ffn = nullptr;  // the same of the MLP's norm, in a parallel block
  float* wide = nullptr;           // [rows, max(q_dim, ff_dim)]: gradients of attention's and the activation's output
  float* dx = nullptr;             // [rows, model_dim]: gradient of the residual stream
  void* dx_operand = nullptr;      // operand
  float* dbranch = nullptr;        // [rows, model_dim]: gradient of what attention or MLP gives, where it is not dx
  void* dbranch_operand = nullptr;
  ExpertGradients experts{};
  float* balance = nullptr;  // [layers, experts]: slopes of the load-balance loss
  void* dffn_in = nullptr;   // operand [rows, ffn_in_dim]
  AttentionGradients attention{};
  float* output = nullptr;  // [rows, model_dim]: the residual stream behind the last block
  NormStatistics output_norm{};
  void* output_normed = nullptr;  // operand [rows, model_dim]
  void* output_scaled = nullptr;  // operand [rows, model_dim]: the same times the loss's scale
  float* logits = nullptr;        // [head_chunk_rows, vocab]
  void* dlogits = nullptr;        // operand [head_chunk_rows, vocab]; `logits` for fp32
  float* losses = nullptr;        // [rows]
  std::int64_t head_chunk_rows = 0;
};

class TrainMemory {
 public:
  /// For `part`, which says its layers. Also gives `context` its scratch. Errors: kNoMemory naming the size.
  static Result<TrainMemory> create(TrainContext& context, const ModelPart& part);
  /// The same memory for the context's micro-batch, which is no larger than that of create(). What was kept is gone.
  void lay_out(TrainContext& context);
  /// What create() would take, of a context of which only config and options are there.
  static std::uint64_t planned_bytes(TrainContext context, const ModelPart& part);

  /// Of the micro-batch that is kept at `place`; a layer of the part.
  const BlockActivations& block(int place, int layer) const {
    return blocks_[static_cast<std::size_t>(place * (part_.last_layer - part_.first_layer) + layer -
                                            part_.first_layer)];
  }
  const TrainScratch& scratch() const { return scratch_; }
  std::uint64_t activation_bytes() const { return activations_.bytes(); }
  std::uint64_t scratch_bytes() const { return shared_.bytes(); }

 private:
  class Layout;
  struct Mlps;
  static void lay_out_results(const TrainContext& context, const Mlps& mlps, BlockActivations& block, Layout& layout);
  static void lay_out_derived(const TrainContext& context, const Mlps& mlps, BlockActivations& block, Layout& layout);
  void lay_out_expert_gradients(const TrainContext& context, Layout& shared);
  void lay_out(TrainContext& context, Layout& own, Layout& shared);
  void lay_out_blocks(const TrainContext& context, Layout& own, Layout& shared);
  void lay_out_head(const TrainContext& context, Layout& shared);
  void lay_out_scratch(TrainContext& context, Layout& shared);

  ModelPart part_{};
  AlignedBuffer activations_, shared_;
  trace::Held activations_held_, shared_held_;
  std::vector<BlockActivations> blocks_;
  TrainScratch scratch_;
};

}  // namespace butterfly
