// Elementwise passes over the rows of a micro-batch, each over memory once: norms with the residual sum before them,
// sums over rows. Sums over rows are chains of kGradientChunkRows rows added in a binary
// tree, so the number of threads does not show. Offsets are into the flat parameters; kNoParameter: there is none.
#pragma once

#include <array>
#include <cstdint>

#include "butterfly/model/training/passes/train_context.h"

namespace butterfly {

struct NormParameters {
  std::int64_t weight = kNoParameter;
  std::int64_t bias = kNoParameter;
};

/// What the backward pass of a norm needs of the forward one; [rows] each. mean: LayerNorm alone.
struct NormStatistics {
  float* mean = nullptr;
  float* inverse = nullptr;
};

/// A norm without a weight passes on what it is given.
struct ResidualNormArgs {
  NormParameters parameters{};
  const float* x = nullptr;      // [rows, model_dim]
  const float* delta = nullptr;  // added to x; null: nothing, and `sum` is not written
  float* sum = nullptr;          // x + delta
  NormStatistics statistics{};   // written
  void* normed = nullptr;        // operand [rows, model_dim]
  float scale = 1.0f;            // of `normed`
};
void residual_norm(const TrainContext& context, const ResidualNormArgs& args);

struct NormBackwardArgs {
  NormParameters parameters{};
  const float* x = nullptr;  // what was normed
  NormStatistics statistics{};
  float* dy = nullptr;  // [rows, model_dim]; scaled in place
  float dy_scale = 1.0f;
  float* dx = nullptr;  // [rows, model_dim]; the residual stream's gradient
  Accumulate accumulate = Accumulate::kYes;
  void* dx_operand = nullptr;  // dx as matmuls take it; may be dx
  std::int64_t bias_below =
      kNoParameter;  // of the matmul whose output was added to make x: its gradient is the sum of dx
};
/// Adds to the gradients of the norm and of `bias_below`.
void norm_backward(const TrainContext& context, const NormBackwardArgs& args);

/// What attention or MLP gives on its way to the residual sum: y = scale * norm(x), the norm where the model has one.
struct OutputNormArgs {
  NormParameters parameters{};
  const float* x = nullptr;     // [rows, model_dim]; may be y where there is no norm
  NormStatistics statistics{};  // written
  float* y = nullptr;           // [rows, model_dim]
};
void output_norm(const TrainContext& context, const OutputNormArgs& args);

/// dx = gradient of x, written; dx_operand the same as matmuls take it. Adds to the gradients of the norm and of
/// `biases`, those of the matmuls that made x.
struct OutputNormBackwardArgs {
  OutputNormArgs forward{};
  const float* dy = nullptr;  // [rows, model_dim]
  float* dx = nullptr;        // [rows, model_dim]
  void* dx_operand = nullptr;
  std::array<std::int64_t, 2> biases{kNoParameter, kNoParameter};
};
void output_norm_backward(const TrainContext& context, const OutputNormBackwardArgs& args);

/// gradients[offset + c] += sum over rows of x[row * stride + c], c < count.
struct ColumnSumArgs {
  const float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;
  std::int64_t offset = kNoParameter;
};
void add_column_sums(const TrainContext& context, const ColumnSumArgs& args);

/// Zeros for one chunk's sums of `width` columns.
float* clear_partial_sums(const TrainContext& context, std::int64_t chunk, std::int64_t width);
/// Adds the chunks' rows of `width` partial sums in a binary tree; the result is the first row.
void fold_partial_sums(const TrainContext& context, std::int64_t width);
/// gradients[offset ...] += `count` of the folded sums; nothing for kNoParameter.
void add_folded(const TrainContext& context, std::int64_t from, std::int64_t count, std::int64_t offset);

/// Floats that passes need in `partial_sums` for each chunk, and in each member's scratch.
std::int64_t partial_sum_width(const TrainContext& context);
std::int64_t pass_scratch_floats(const TrainContext& context);

}  // namespace butterfly
