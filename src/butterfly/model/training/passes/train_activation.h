// The activation of an MLP, of all rows or of those that experts have, forward and backward.
#pragma once

#include <cstdint>

#include "butterfly/model/training/passes/train_context.h"

namespace butterfly {

/// Of an MLP of width ff_dim. in: [rows, mlp_in_dim(ff_dim)], gate before up. `silu` [rows, ff_dim] is written and read
/// only where SwiGLU is not fused.
struct ActivationArgs {
  float* in = nullptr;
  float* silu = nullptr;
  void* hidden = nullptr;  // operand [rows, ff_dim]
  std::int64_t ff_dim = 0;
  std::int64_t rows = 0;
};
void activation(const TrainContext& context, const ActivationArgs& args);

struct ActivationBackwardArgs {
  ActivationArgs forward{};
  float* dhidden = nullptr;  // [rows, ff_dim]; scratch afterwards where SwiGLU is not fused
  void* din = nullptr;       // operand, as wide as forward.in
  std::int64_t gate_bias = kNoParameter;
  std::int64_t up_bias = kNoParameter;
};
/// Adds to the gradients of the biases; an MLP that has some is of all rows of the context.
void activation_backward(const TrainContext& context, const ActivationBackwardArgs& args);

}  // namespace butterfly
