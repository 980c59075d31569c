// The RMS norms of queries and keys between their matmul and their rotation, of each head or of all heads of a token as
// one row. Nothing where the model has none.
#pragma once

#include "butterfly/model/training/passes/train_attention.h"

namespace butterfly {

/// Normed in their place; `raw` keeps them as they were.
void norm_queries_and_keys(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers);

/// The gradients of queries and keys in dqkv become those of `raw`, also as matmuls take them. Adds to the gradients of
/// the norms.
void norm_queries_and_keys_backward(const TrainContext& context, const AttentionKind& kind,
                                    const AttentionBuffers& buffers, const AttentionGradients& gradients);

}  // namespace butterfly
