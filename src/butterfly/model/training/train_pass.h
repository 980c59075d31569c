// Elementwise passes over the rows of a micro-batch, each over memory once: norms with the residual sum before them,
// the activation of the MLP, sums over rows. Sums over rows are chains of kGradientChunkRows rows added in a binary
// tree, so the number of threads does not show. Offsets are into the flat parameters; kNoParameter: there is none.
#pragma once

#include <cstdint>

#include "butterfly/model/training/train_context.h"

namespace butterfly {

inline constexpr std::int64_t kNoParameter = -1;

struct NormParameters {
  std::int64_t weight = kNoParameter;
  std::int64_t bias = kNoParameter;
};

/// What the backward pass of a norm needs of the forward one; [rows] each. mean: LayerNorm alone.
struct NormStatistics {
  float* mean = nullptr;
  float* inverse = nullptr;
};

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

/// in: [rows, ffn_in_dim], gate before up. `silu` [rows, ff_dim] is written and read only where SwiGLU is not fused.
struct ActivationArgs {
  float* in = nullptr;
  float* silu = nullptr;
  void* hidden = nullptr;  // operand [rows, ff_dim]
};
void activation(const TrainContext& context, const ActivationArgs& args);

struct ActivationBackwardArgs {
  ActivationArgs forward{};
  float* dhidden = nullptr;  // [rows, ff_dim]; scratch afterwards where SwiGLU is not fused
  void* din = nullptr;       // operand [rows, ffn_in_dim]
  std::int64_t gate_bias = kNoParameter;
  std::int64_t up_bias = kNoParameter;
};
/// Adds to the gradients of the biases.
void activation_backward(const TrainContext& context, const ActivationBackwardArgs& args);

/// gradients[offset + c] += sum over rows of x[row * stride + c], c < count.
struct ColumnSumArgs {
  const float* x = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;
  std::int64_t offset = kNoParameter;
};
void add_column_sums(const TrainContext& context, const ColumnSumArgs& args);

/// Floats that passes need in `partial_sums` for each chunk, and in each member's scratch.
std::int64_t partial_sum_width(const TrainContext& context);
std::int64_t pass_scratch_floats(const TrainContext& context);

}  // namespace butterfly
