#include "butterfly/model/training/passes/train_activation.h"

#include "butterfly/model/training/passes/train_pass.h"
#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

trace::Work activation_work(const TrainContext& context, const ActivationArgs& args, trace::Pass pass) {
  const bool backward = pass == trace::Pass::kInputGradient;
  const auto in = static_cast<std::uint64_t>(context.mlp_in_dim(1));  // elements for each one that is given
  const std::uint64_t bytes =
      backward ? (in + 1) * sizeof(float) + in * context.operand_bytes() : in * sizeof(float) + context.operand_bytes();
  return work_of({.rows = args.rows, .cols = args.ff_dim, .bytes = bytes, .pass = pass});
}

/// One row of the gradients of gate and up, in two passes over it; `dhidden` becomes the gradient of silu(gate).
void separate_swiglu_backward(const TrainingKernels& kernels, const float* in, const float* silu, float* dhidden,
                              std::int64_t n, float* din, float* scratch) {
  float* ones = scratch;
  float* unused = scratch + n;
  for (std::int64_t i = 0; i < n; ++i) din[n + i] = dhidden[i] * silu[i];
  for (std::int64_t i = 0; i < n; ++i) dhidden[i] *= in[n + i];
  std::fill(ones, ones + n, 1.0f);
  kernels.silu_mul_backward(dhidden, in, ones, n, din, unused);
}

/// One row of gelu(gate) * up, and of its gradients; scratch: n floats.
void gelu_mul(const TrainingKernels& kernels, const float* in, std::int64_t n, float* y) {
  kernels.gelu(in, n, y);
  for (std::int64_t i = 0; i < n; ++i) y[i] *= in[n + i];
}
void gelu_mul_backward(const TrainingKernels& kernels, const float* dy, const float* in, std::int64_t n, float* din,
                       float* scratch) {
  kernels.gelu(in, n, scratch);
  for (std::int64_t i = 0; i < n; ++i) din[n + i] = dy[i] * scratch[i];
  for (std::int64_t i = 0; i < n; ++i) scratch[i] = dy[i] * in[n + i];
  kernels.gelu_backward(scratch, in, n, din);
}

/// The input's gradients of one row; scratch: 2 n floats.
void activation_row_backward(const TrainContext& context, const ActivationBackwardArgs& args, std::int64_t row,
                             float* din, float* scratch) {
  const TrainingKernels& kernels = *context.kernels;
  const std::int64_t n = args.forward.ff_dim;
  const float* in = args.forward.in + row * context.mlp_in_dim(n);
  float* dhidden = args.dhidden + row * n;
  const Activation kind = context.config->activation;
  if (context.config->mlp == MlpKind::kPlain) {
    (kind == Activation::kGeluErf ? kernels.gelu_erf_backward : kernels.gelu_backward)(dhidden, in, n, din);
  } else if (kind == Activation::kGeluTanh) {
    gelu_mul_backward(kernels, dhidden, in, n, din, scratch);
  } else if (context.options.fusion.swiglu) {
    kernels.silu_mul_backward(dhidden, in, in + n, n, din, din + n);
  } else {
    separate_swiglu_backward(kernels, in, args.forward.silu + row * n, dhidden, n, din, scratch);
  }
}

}  // namespace

void activation(const TrainContext& context, const ActivationArgs& args) {
  const trace::Scope scope(trace::Zone::kActivation, activation_work(context, args, context.pass));
  const std::int64_t n = args.ff_dim;
  const std::int64_t width = context.mlp_in_dim(n);
  const auto rows = [&](const auto& compute) {
    context.for_rows(args.rows, [&](int member, std::int64_t row) {
      void* place = context.operand_at(args.hidden, row * n);
      float* y = context.operand_row(place, context.scratch_of(member));
      compute(row, args.in + row * width, y);
      context.pack_operand(y, n, place);
    });
  };
  const TrainingKernels& kernels = *context.kernels;
  const Activation kind = context.config->activation;
  if (context.config->mlp == MlpKind::kPlain) {
    const auto gelu = kind == Activation::kGeluErf ? kernels.gelu_erf : kernels.gelu;
    rows([&](std::int64_t, const float* in, float* y) { gelu(in, n, y); });
  } else if (kind == Activation::kGeluTanh) {
    rows([&](std::int64_t, const float* in, float* y) { gelu_mul(kernels, in, n, y); });
  } else if (context.options.fusion.swiglu) {
    rows([&](std::int64_t, const float* in, float* y) { kernels.silu_mul(in, in + n, n, y); });
  } else {
    // Apart, as a framework without fusion does it: the activation, then its matmul with `up`.
    context.for_rows(args.rows, [&](int member, std::int64_t row) {
      float* ones = context.scratch_of(member) + n;
      std::fill(ones, ones + n, 1.0f);
      kernels.silu_mul(args.in + row * width, ones, n, args.silu + row * n);
    });
    rows([&](std::int64_t row, const float* in, float* y) {
      const float* silu = args.silu + row * n;
      for (std::int64_t i = 0; i < n; ++i) y[i] = silu[i] * in[n + i];
    });
  }
}

void activation_backward(const TrainContext& context, const ActivationBackwardArgs& args) {
  const trace::Scope scope(trace::Zone::kActivation,
                           activation_work(context, args.forward, trace::Pass::kInputGradient));
  const std::int64_t n = args.forward.ff_dim;
  const std::int64_t width = context.mlp_in_dim(n);
  const auto one_row = [&](int member, std::int64_t row, float* sums) {
    float* scratch = context.scratch_of(member);
    void* place = context.operand_at(args.din, row * width);
    float* din = context.operand_row(place, scratch);
    activation_row_backward(context, args, row, din, scratch + width);
    if (sums != nullptr) context.kernels->add(din, width, sums);
    context.pack_operand(din, width, place);
  };
  if (args.gate_bias == kNoParameter && args.up_bias == kNoParameter) {
    context.for_rows(args.forward.rows, [&](int member, std::int64_t row) { one_row(member, row, nullptr); });
    return;
  }
  context.for_chunks([&](int member, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, width);
    for (std::int64_t row = first; row < last; ++row) one_row(member, row, sums);
  });
  fold_partial_sums(context, width);
  add_folded(context, 0, n, args.gate_bias);
  add_folded(context, context.config->mlp == MlpKind::kGated ? n : 0, n, args.up_bias);
}

}  // namespace butterfly
