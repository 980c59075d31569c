// The two ends of a TrainableTransformer: token ids to rows and back to gradients of the embedding, and rows to a loss
// and back. Logits are taken for head_chunk_rows rows at a time; the last chunk stays for the backward pass, others are
// computed again there.
#pragma once

#include <span>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/model/training/train_block.h"
#include "butterfly/model/training/train_memory.h"

namespace butterfly {

struct EmbeddingAndLmHead {
  std::int64_t token_embedding = kNoParameter;     // [vocab, model_dim]
  std::int64_t position_embedding = kNoParameter;  // [context, model_dim]
  NormParameters output_norm{};
  Projection head{};                      // the token embedding where it is tied
  std::int64_t head_bias = kNoParameter;  // [vocab]
  ParameterRange embedding_range{};       // in the flat arrays, gaps included
  ParameterRange head_range{};
};

/// `first_block`: where the first block's parameters begin. Errors: kNotFound.
Result<EmbeddingAndLmHead> make_embedding_and_lm_head(const ModelConfig& config, const ParameterSet& parameters,
                                                      std::int64_t first_block);

/// x: [rows, model_dim], written.
void embed(const TrainContext& context, const EmbeddingAndLmHead& ends, std::span<const TokenId> tokens, float* x);

/// Adds the rows of `dx` to the gradients of the embeddings, in row order.
void embed_backward(const TrainContext& context, const EmbeddingAndLmHead& ends, std::span<const TokenId> tokens,
                    const float* dx);

/// The sum of the losses; targets of -1 are left out. Errors: those of Gemm, here and below.
Result<double> forward_lm_head(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                               const ResidualSum& before, std::span<const TokenId> targets);

/// After forward_lm_head() with the same targets: writes scratch.dx, adds to the gradients of the head, of the norm
/// before it and of `bias_below` (train_block.h), all times `scale`.
struct HeadBackwardArgs {
  std::span<const TokenId> targets{};
  float scale = 1.0f;
  std::int64_t bias_below = kNoParameter;
};
Status backward_lm_head(const TrainContext& context, const EmbeddingAndLmHead& ends, const TrainScratch& scratch,
                        const HeadBackwardArgs& args);

}  // namespace butterfly
