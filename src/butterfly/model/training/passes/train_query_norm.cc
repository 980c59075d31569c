#include "butterfly/model/training/passes/train_query_norm.h"

#include <array>
#include <cstring>

#include "butterfly/model/training/passes/train_pass.h"
#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

/// The queries or the keys of a token: `count` rows that are normed, of `width` elements each.
struct NormedColumns {
  std::int64_t first = 0;  // column of qkv and of raw
  std::int64_t count = 0;
  std::int64_t width = 0;
  std::int64_t first_inverse = 0;
  std::int64_t parameter = kNoParameter;
  std::int64_t first_sum = 0;  // of the sums for the weights
};

std::array<NormedColumns, 2> normed_columns(const TrainContext& context, const AttentionKind& kind) {
  const ModelConfig& config = *context.config;
  const bool head = config.qk_norm == QkNorm::kHead;
  const std::int64_t q_width = head ? config.head_dim : config.q_dim();
  const std::int64_t k_width = head ? config.head_dim : config.kv_dim();
  return {NormedColumns{.count = config.q_dim() / q_width, .width = q_width, .parameter = kind.q_norm},
          NormedColumns{.first = config.q_dim(),
                        .count = config.kv_dim() / k_width,
                        .width = k_width,
                        .first_inverse = config.heads,
                        .parameter = kind.k_norm,
                        .first_sum = q_width}};
}

std::int64_t raw_dim(const TrainContext& context) {
  return std::int64_t{context.config->q_dim()} + context.config->kv_dim();
}

std::int64_t inverses(const TrainContext& context) {
  return std::int64_t{context.config->heads} + context.config->kv_heads;
}

}  // namespace

void norm_queries_and_keys(const TrainContext& context, const AttentionKind& kind, const AttentionBuffers& buffers) {
  if (context.config->qk_norm == QkNorm::kNone) return;
  const auto columns = normed_columns(context, kind);
  const std::int64_t n = raw_dim(context);
  const trace::Scope scope(
      trace::Zone::kNorm,
      work_of({.rows = context.rows(), .cols = n, .bytes = 3 * sizeof(float), .pass = context.pass}));
  context.for_rows(context.rows(), [&](int, std::int64_t row) {
    float* qkv = buffers.qkv + row * context.qkv_dim();
    float* raw = buffers.raw + row * n;
    std::memcpy(raw, qkv, static_cast<std::size_t>(n) * sizeof(float));
    for (const NormedColumns& part : columns) {
      float* inverse = buffers.raw_inverse + row * inverses(context) + part.first_inverse;
      for (std::int64_t i = 0; i < part.count; ++i) {
        const std::int64_t at = part.first + i * part.width;
        context.kernels->rms_norm(raw + at, context.weights + part.parameter, context.config->norm_epsilon, part.width,
                                  qkv + at, inverse + i);
      }
    }
  });
}

void norm_queries_and_keys_backward(const TrainContext& context, const AttentionKind& kind,
                                    const AttentionBuffers& buffers, const AttentionGradients& gradients) {
  if (context.config->qk_norm == QkNorm::kNone) return;
  const auto columns = normed_columns(context, kind);
  const std::int64_t n = raw_dim(context);
  const std::int64_t sums_width = columns[0].width + columns[1].width;
  const trace::Scope scope(trace::Zone::kNorm, work_of({.rows = context.rows(),
                                                        .cols = n,
                                                        .bytes = 3 * sizeof(float) + (context.bf16() ? 2 : 0),
                                                        .pass = trace::Pass::kInputGradient}));
  context.for_chunks([&](int member, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, sums_width);
    float* dy = context.scratch_of(member);
    for (std::int64_t row = first; row < last; ++row) {
      float* dx = gradients.dqkv + row * context.qkv_dim();
      const float* raw = buffers.raw + row * n;
      std::memcpy(dy, dx, static_cast<std::size_t>(n) * sizeof(float));
      std::memset(dx, 0, static_cast<std::size_t>(n) * sizeof(float));
      for (const NormedColumns& part : columns) {
        const float* inverse = buffers.raw_inverse + row * inverses(context) + part.first_inverse;
        for (std::int64_t i = 0; i < part.count; ++i) {
          const std::int64_t at = part.first + i * part.width;
          context.kernels->rms_norm_backward(dy + at, raw + at, context.weights + part.parameter, inverse[i],
                                             part.width, dx + at, sums + part.first_sum);
        }
      }
      context.pack_operand(dx, n, context.operand_at(gradients.dqkv_operand, row * context.qkv_dim()));
    }
  });
  fold_partial_sums(context, sums_width);
  for (const NormedColumns& part : columns) add_folded(context, part.first_sum, part.width, part.parameter);
}

}  // namespace butterfly
