#include "butterfly/model/training/passes/train_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "butterfly/model/training/passes/train_query_norm.h"
#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

/// One key-value head of one sequence, and the query heads that share it.
struct HeadGroup {
  std::int64_t first_row = 0;   // of its sequence
  std::int64_t first_head = 0;  // of its query heads
  std::int64_t heads = 0;
  std::int64_t q = 0, k = 0, v = 0;  // first elements in a row of Q, K and V; further query heads follow q
};

HeadGroup head_group(const TrainContext& context, std::int64_t item) {
  const ModelConfig& config = *context.config;
  const std::int64_t kv_head = item % config.kv_heads;
  HeadGroup group;
  group.first_row = item / config.kv_heads * context.seq();
  group.heads = config.heads / config.kv_heads;
  group.first_head = kv_head * group.heads;
  group.q = group.first_head * config.head_dim;
  group.k = config.q_dim() + kv_head * config.head_dim;
  group.v = group.k + config.kv_dim();
  return group;
}

template <typename Work>
void for_groups(const TrainContext& context, const Work& work) {
  context.for_rows(context.batch() * context.config->kv_heads,
                   [&](int member, std::int64_t item) { work(member, head_group(context, item)); });
}

enum class Turn : std::int8_t { kForward = 1, kBack = -1 };

/// Rotates one head of a sequence; x: its first element in the sequence's first row.
void rotate(const TrainContext& context, const RopeAngles& rope, float* x, Turn turn) {
  for (std::int64_t t = 0; t < context.seq(); ++t) {
    context.kernels->rope(x + t * context.qkv_dim(), rope.cos + t * rope.pairs, rope.sin + t * rope.pairs,
                          turn == Turn::kForward ? 1.0f : -1.0f, rope.pairs, rope.adjacent);
  }
}

void rotate_group(const TrainContext& context, const AttentionKind& kind, const HeadGroup& group, float* qkv,
                  Turn turn) {
  if (kind.rope == kNoRope) return;
  const RopeAngles& rope = context.ropes[static_cast<std::size_t>(kind.rope)];
  float* rows = qkv + group.first_row * context.qkv_dim();
  for (std::int64_t head = 0; head < group.heads; ++head) {
    rotate(context, rope, rows + group.q + head * context.config->head_dim, turn);
  }
  rotate(context, rope, rows + group.k, turn);
}

/// Columns [first, first + count) of a sequence's rows, packed as operands.
struct Columns {
  const float* from = nullptr;
  void* to = nullptr;
  std::int64_t stride = 0;  // of both
};
void pack_columns(const TrainContext& context, const Columns& columns, std::int64_t first_row, std::int64_t first,
                  std::int64_t count) {
  if (!context.bf16()) return;
  for (std::int64_t row = first_row; row < first_row + context.seq(); ++row) {
    const std::int64_t at = row * columns.stride + first;
    context.pack_operand(columns.from + at, count, context.operand_at(columns.to, at));
  }
}

float score_scale(const TrainContext& context) {
  const float scale = context.config->attention_scale;
  return scale > 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(context.config->head_dim));
}

/// The arguments of query head `head` (of the group).
TrainAttentionArgs head_args(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers,
                             const HeadGroup& group, std::int64_t head) {
  const std::int64_t q_dim = context.config->q_dim();
  const std::int64_t sequence = group.first_row / context.seq();
  const float* rows = buffers.qkv + group.first_row * context.qkv_dim();
  const std::int64_t column = group.q + head * context.config->head_dim;
  TrainAttentionArgs args;
  args.seq = context.seq();
  args.head_dim = context.config->head_dim;
  args.scale = score_scale(context);
  args.window = kind.window;
  args.cap = context.config->attention_cap;
  args.q = rows + column;
  args.k = rows + group.k;
  args.v = rows + group.v;
  args.q_stride = args.k_stride = args.v_stride = context.qkv_dim();
  args.out = buffers.mixed + group.first_row * q_dim + column;
  args.out_stride = q_dim;
  args.log_sum_exp = buffers.log_sum_exp + (sequence * context.config->heads + group.first_head + head) * context.seq();
  return args;
}

void zero_columns(float* x, std::int64_t rows, std::int64_t stride, std::int64_t count) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memset(x + row * stride, 0, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// --- With the [seq, seq] matrix: one matmul for each head.

/// The [seq, seq] matrix of query head `head` of the group.
float* matrix_of(const TrainContext& context, const HeadGroup& group, std::int64_t head, float* matrices) {
  const std::int64_t sequence = group.first_row / context.seq();
  return matrices + (sequence * context.config->heads + group.first_head + head) * context.seq() * context.seq();
}

/// work(group, head, its column in Q) for every query head, one after the other: each uses the team.
template <typename Work>
Status for_heads(const TrainContext& context, const Work& work) {
  const std::int64_t groups = context.batch() * context.config->kv_heads;
  for (std::int64_t item = 0; item < groups; ++item) {
    const HeadGroup group = head_group(context, item);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      BF_TRY(work(group, head, group.q + head * context.config->head_dim));
    }
  }
  return {};
}

/// Keys [first, end) that row t of a matrix sees.
IndexRange visible_keys(const AttentionKind& kind, std::int64_t t) {
  return {kind.window > 0 ? std::max<std::int64_t>(0, t + 1 - kind.window) : 0, t + 1};
}

/// Rows of scores become probabilities. With a cap, its slopes at the scores go to `slopes`, a matrix like the other.
void causal_softmax(const TrainContext& context, const AttentionKind& kind, float* matrices, float* slopes) {
  const std::int64_t seq = context.seq();
  const float scale = score_scale(context);
  const float cap = context.config->attention_cap;
  context.for_rows(context.batch() * context.config->heads * seq, [&](int, std::int64_t index) {
    float* row = matrices + index * seq;
    const IndexRange keys = visible_keys(kind, index % seq);
    for (std::int64_t i = keys.begin; i < keys.end; ++i) row[i] *= scale;
    if (cap != 0.0f) context.kernels->cap_values(cap, keys.size(), row + keys.begin, slopes + index * seq + keys.begin);
    // The gradient of the cross-entropy with target 0 is the softmax but for that element.
    context.kernels->softmax_cross_entropy(row + keys.begin, keys.size(), 0, 1.0f);
    row[keys.begin] += 1.0f;
    std::fill(row, row + keys.begin, 0.0f);
    std::fill(row + keys.end, row + seq, 0.0f);
  });
}

/// Rows of dP become rows of the scores' gradient: P (dP - sum(P dP)) * scale, times the slope of the cap.
void causal_softmax_backward(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers,
                             float* dmatrices) {
  const std::int64_t seq = context.seq();
  const float scale = score_scale(context);
  context.for_rows(context.batch() * context.config->heads * seq, [&](int, std::int64_t index) {
    const float* p = buffers.probabilities + index * seq;
    float* dp = dmatrices + index * seq;
    const IndexRange keys = visible_keys(kind, index % seq);
    float sum = 0.0f;
    for (std::int64_t i = keys.begin; i < keys.end; ++i) sum += p[i] * dp[i];
    for (std::int64_t i = keys.begin; i < keys.end; ++i) dp[i] = p[i] * (dp[i] - sum) * scale;
    if (buffers.cap_slopes != nullptr) {
      const float* slope = buffers.cap_slopes + index * seq;
      for (std::int64_t i = keys.begin; i < keys.end; ++i) dp[i] *= slope[i];
    }
    std::fill(dp, dp + keys.begin, 0.0f);
    std::fill(dp + keys.end, dp + seq, 0.0f);
  });
}

Status separate_attention(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers) {
  const std::int64_t seq = context.seq();
  const std::int64_t head_dim = context.config->head_dim;
  const std::int64_t stride = context.qkv_dim();
  BF_TRY(for_heads(context, [&](const HeadGroup& group, std::int64_t head, std::int64_t column) {
    const float* rows = buffers.qkv + group.first_row * stride;
    return context.exact_gemm->run({.m = seq,
                                    .n = seq,
                                    .k = head_dim,
                                    .a = rows + column,
                                    .b = rows + group.k,
                                    .c = matrix_of(context, group, head, buffers.probabilities),
                                    .a_stride = stride,
                                    .b_stride = stride,
                                    .c_stride = seq,
                                    .b_transposed = Transpose::kYes});
  }));
  causal_softmax(context, kind, buffers.probabilities, buffers.cap_slopes);
  return for_heads(context, [&](const HeadGroup& group, std::int64_t head, std::int64_t column) {
    const std::int64_t q_dim = context.config->q_dim();
    return context.exact_gemm->run({.m = seq,
                                    .n = head_dim,
                                    .k = seq,
                                    .a = matrix_of(context, group, head, buffers.probabilities),
                                    .b = buffers.qkv + group.first_row * stride + group.v,
                                    .c = buffers.mixed + group.first_row * q_dim + column,
                                    .a_stride = seq,
                                    .b_stride = stride,
                                    .c_stride = q_dim});
  });
}

/// dP = dO V^T into dprobabilities, dV += P^T dO.
Status separate_value_gradients(const TrainContext& context, const AttentionBuffers& buffers,
                                const AttentionGradients& gradients) {
  const std::int64_t seq = context.seq();
  const std::int64_t head_dim = context.config->head_dim;
  const std::int64_t stride = context.qkv_dim();
  const std::int64_t q_dim = context.config->q_dim();
  return for_heads(context, [&](const HeadGroup& group, std::int64_t head, std::int64_t column) -> Status {
    const float* dout = gradients.dmixed + group.first_row * q_dim + column;
    BF_TRY(context.exact_gemm->run({.m = seq,
                                    .n = seq,
                                    .k = head_dim,
                                    .a = dout,
                                    .b = buffers.qkv + group.first_row * stride + group.v,
                                    .c = matrix_of(context, group, head, gradients.dprobabilities),
                                    .a_stride = q_dim,
                                    .b_stride = stride,
                                    .c_stride = seq,
                                    .b_transposed = Transpose::kYes}));
    return context.exact_gemm->run({.m = seq,
                                    .n = head_dim,
                                    .k = seq,
                                    .a = matrix_of(context, group, head, buffers.probabilities),
                                    .b = dout,
                                    .c = gradients.dqkv + group.first_row * stride + group.v,
                                    .a_stride = seq,
                                    .b_stride = q_dim,
                                    .c_stride = stride,
                                    .a_transposed = Transpose::kYes,
                                    .accumulate = head > 0 ? Accumulate::kYes : Accumulate::kNo});
  });
}

/// From dS in dprobabilities: dQ = dS K, dK += dS^T Q.
Status separate_score_gradients(const TrainContext& context, const AttentionBuffers& buffers,
                                const AttentionGradients& gradients) {
  const std::int64_t seq = context.seq();
  const std::int64_t head_dim = context.config->head_dim;
  const std::int64_t stride = context.qkv_dim();
  return for_heads(context, [&](const HeadGroup& group, std::int64_t head, std::int64_t column) -> Status {
    const float* rows = buffers.qkv + group.first_row * stride;
    float* drows = gradients.dqkv + group.first_row * stride;
    const float* dscores = matrix_of(context, group, head, gradients.dprobabilities);
    BF_TRY(context.exact_gemm->run({.m = seq,
                                    .n = head_dim,
                                    .k = seq,
                                    .a = dscores,
                                    .b = rows + group.k,
                                    .c = drows + column,
                                    .a_stride = seq,
                                    .b_stride = stride,
                                    .c_stride = stride}));
    return context.exact_gemm->run({.m = seq,
                                    .n = head_dim,
                                    .k = seq,
                                    .a = dscores,
                                    .b = rows + column,
                                    .c = drows + group.k,
                                    .a_stride = seq,
                                    .b_stride = stride,
                                    .c_stride = stride,
                                    .a_transposed = Transpose::kYes,
                                    .accumulate = head > 0 ? Accumulate::kYes : Accumulate::kNo});
  });
}

void fused_attention_backward(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers,
                              const AttentionGradients& gradients, const HeadGroup& group, int member) {
  const std::int64_t stride = context.qkv_dim();
  const std::int64_t q_dim = context.config->q_dim();
  const std::int64_t head_dim = context.config->head_dim;
  float* drows = gradients.dqkv + group.first_row * stride;
  zero_columns(drows + group.k, context.seq(), stride, head_dim);
  zero_columns(drows + group.v, context.seq(), stride, head_dim);
  for (std::int64_t head = 0; head < group.heads; ++head) {
    const std::int64_t column = group.q + head * head_dim;
    TrainAttentionGradientArgs args;
    args.forward = head_args(context, kind, buffers, group, head);
    args.forward.scratch = context.scratch_of(member);
    args.dout = gradients.dmixed + group.first_row * q_dim + column;
    args.dout_stride = q_dim;
    args.dq = drows + column;
    args.dk = drows + group.k;
    args.dv = drows + group.v;
    args.dq_stride = args.dk_stride = args.dv_stride = stride;
    context.kernels->attention_backward(args);
  }
}

void rotate_queries_and_keys(const TrainContext& context, const AttentionKind& kind, float* qkv) {
  if (kind.rope == kNoRope) return;
  const trace::Scope scope(trace::Zone::kRotary, work_of({.rows = context.rows(),
                                                          .cols = context.qkv_dim() - context.config->kv_dim(),
                                                          .bytes = 2 * sizeof(float),
                                                          .pass = context.pass}));
  for_groups(context, [&](int, const HeadGroup& group) { rotate_group(context, kind, group, qkv, Turn::kForward); });
}

/// From the gradient of what attention gives to those of Q, K and V as they were before the rotation.
Status through_attention(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers,
                         const AttentionGradients& gradients) {
  const trace::Scope scope(trace::Zone::kAttention, attention_work(context, kind.window, trace::Pass::kInputGradient));
  const bool fused = context.options.fusion.attention;
  if (!fused) {
    BF_TRY(separate_value_gradients(context, buffers, gradients));
    causal_softmax_backward(context, kind, buffers, gradients.dprobabilities);
    BF_TRY(separate_score_gradients(context, buffers, gradients));
  }
  const std::int64_t head_dim = context.config->head_dim;
  const Columns columns{gradients.dqkv, gradients.dqkv_operand, context.qkv_dim()};
  for_groups(context, [&](int member, const HeadGroup& group) {
    if (fused) fused_attention_backward(context, kind, buffers, gradients, group, member);
    rotate_group(context, kind, group, gradients.dqkv, Turn::kBack);
    pack_columns(context, columns, group.first_row, group.q, group.heads * head_dim);
    pack_columns(context, columns, group.first_row, group.k, head_dim);
    pack_columns(context, columns, group.first_row, group.v, head_dim);
  });
  return {};
}

}  // namespace

Status attention(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers) {
  norm_queries_and_keys(context, kind, buffers);
  if (!context.options.fusion.attention) {
    rotate_queries_and_keys(context, kind, buffers.qkv);
    const trace::Scope scope(trace::Zone::kAttention, attention_work(context, kind.window, context.pass));
    BF_TRY(separate_attention(context, kind, buffers));
    pack_mixed(context, buffers);
    return {};
  }
  const trace::Scope scope(trace::Zone::kAttention, attention_work(context, kind.window, context.pass));
  for_groups(context, [&](int member, const HeadGroup& group) {
    rotate_group(context, kind, group, buffers.qkv, Turn::kForward);
    for (std::int64_t head = 0; head < group.heads; ++head) {
      TrainAttentionArgs args = head_args(context, kind, buffers, group, head);
      args.scratch = context.scratch_of(member);
      context.kernels->attention(args);
    }
    pack_columns(context, {buffers.mixed, buffers.mixed_operand, context.config->q_dim()}, group.first_row, group.q,
                 group.heads * context.config->head_dim);
  });
  return {};
}

Status attention_backward(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers,
                          const AttentionGradients& gradients) {
  BF_TRY(through_attention(context, kind, buffers, gradients));
  norm_queries_and_keys_backward(context, kind, buffers, gradients);
  return {};
}

void pack_mixed(const TrainContext& context, const AttentionBuffers& buffers) {
  if (!context.bf16()) return;
  const std::int64_t n = context.config->q_dim();
  const trace::Scope scope(
      trace::Zone::kCast,
      work_of({.rows = context.rows(), .cols = n, .bytes = sizeof(float) + 2, .pass = context.pass}));
  context.for_rows(context.rows(), [&](int, std::int64_t row) {
    context.pack_operand(buffers.mixed + row * n, n, context.operand_at(buffers.mixed_operand, row * n));
  });
}

std::int64_t attention_scratch_floats(const TrainContext& context) {
  return train_attention_scratch(context.seq(), context.config->head_dim);
}

}  // namespace butterfly
