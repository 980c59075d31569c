// Causal attention of a TrainableTransformer, rotary positions included: fused (never a [seq, seq] matrix) or, for
// comparison, by matmuls with that matrix. Work is cut into key-value heads of sequences.
#pragma once

#include <cstdint>

#include "butterfly/base/result.h"
#include "butterfly/model/training/passes/train_context.h"

namespace butterfly {

/// What one layer's attention does apart from its matmuls.
struct AttentionKind {
  int rope = kMainRope;
  std::int64_t window = 0;             // keys that a query sees, its own included; 0: all
  std::int64_t q_norm = kNoParameter;  // weights of the norms of queries and keys
  std::int64_t k_norm = kNoParameter;
};

struct AttentionBuffers {
  float* qkv = nullptr;  // [rows, qkv_dim]: Q, K and V of a token beside one another; Q and K are rotated in place
  float* raw = nullptr;  // [rows, q_dim + kv_dim]: Q and K before their norms
  float* raw_inverse = nullptr;    // [rows, heads + kv_heads]: of those norms
  float* log_sum_exp = nullptr;    // [batch, heads, seq]; fused
  float* probabilities = nullptr;  // [batch, heads, seq, seq]; not fused
  float* cap_slopes = nullptr;     // the same; with a cap
  float* mixed = nullptr;          // [rows, q_dim]
  void* mixed_operand = nullptr;   // the same as matmuls take it; may be `mixed`
};
Status attention(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers);

struct AttentionGradients {
  const float* dmixed = nullptr;    // [rows, q_dim]
  float* dqkv = nullptr;            // [rows, qkv_dim], written; of what came before the rotation
  void* dqkv_operand = nullptr;     // the same as matmuls take it; may be `dqkv`
  float* dprobabilities = nullptr;  // as `probabilities`, scratch; not fused
};
/// Errors, here and above: those of Gemm, where attention is not fused.
/// Adds to the gradients of the norms of queries and keys.
Status attention_backward(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers,
                          const AttentionGradients& gradients);

/// Packs `mixed` again.
void pack_mixed(const TrainContext& context, const AttentionBuffers& buffers);

/// Floats of each member's scratch.
std::int64_t attention_scratch_floats(const TrainContext& context);

}  // namespace butterfly
