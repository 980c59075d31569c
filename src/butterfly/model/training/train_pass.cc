#include "butterfly/model/training/train_pass.h"

#include <cstring>

namespace butterfly {
namespace {

const float* weight_at(const TrainContext& context, std::int64_t offset) {
  return offset == kNoParameter ? nullptr : context.weights + offset;
}

/// Adds the chunks' rows of `width` partial sums in a binary tree; the result is the first row.
void fold_partial_sums(const TrainContext& context, std::int64_t width) {
  const std::int64_t chunks = context.chunks();
  context.team->run([&](int member) {
    const WorkRange range = split_work(width, member, context.team->size());
    for (std::int64_t step = 1; step < chunks; step *= 2) {
      for (std::int64_t chunk = 0; chunk + step < chunks; chunk += 2 * step) {
        context.kernels->add(context.partial_sums + (chunk + step) * width + range.begin, range.end - range.begin,
                             context.partial_sums + chunk * width + range.begin);
      }
    }
  });
}

void add_folded(const TrainContext& context, std::int64_t from, std::int64_t count, std::int64_t offset) {
  if (offset != kNoParameter) context.kernels->add(context.partial_sums + from, count, context.gradients + offset);
}

float* clear_partial_sums(const TrainContext& context, std::int64_t chunk, std::int64_t width) {
  float* sums = context.partial_sums + chunk * width;
  std::memset(sums, 0, static_cast<std::size_t>(width) * sizeof(float));
  return sums;
}

void scale_row(float* x, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= scale;
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

}  // namespace

void residual_norm(const TrainContext& context, const ResidualNormArgs& args) {
  const ModelConfig& config = *context.config;
  const std::int64_t n = config.model_dim;
  const float* weight = weight_at(context, args.parameters.weight);
  const float* bias = weight_at(context, args.parameters.bias);
  context.for_rows(context.rows(), [&](int member, std::int64_t row) {
    const float* x = args.x + row * n;
    if (args.delta != nullptr) {
      float* sum = args.sum + row * n;
      const float* delta = args.delta + row * n;
      std::memcpy(sum, x, static_cast<std::size_t>(n) * sizeof(float));
      context.kernels->add(delta, n, sum);
      x = sum;
    }
    void* place = context.operand_at(args.normed, row * n);
    float* y = context.operand_row(place, context.scratch_of(member));
    if (config.norm == NormKind::kRms) {
      context.kernels->rms_norm(x, weight, config.norm_epsilon, n, y, args.statistics.inverse + row);
    } else {
      context.kernels->layer_norm(x, weight, bias, config.norm_epsilon, n, y, args.statistics.mean + row,
                                  args.statistics.inverse + row);
    }
    if (args.scale != 1.0f) scale_row(y, n, args.scale);
    context.pack_operand(y, n, place);
  });
}

void norm_backward(const TrainContext& context, const NormBackwardArgs& args) {
  const ModelConfig& config = *context.config;
  const std::int64_t n = config.model_dim;
  const float* weight = weight_at(context, args.parameters.weight);
  const bool rms = config.norm == NormKind::kRms;
  const bool sum_dx = args.bias_below != kNoParameter;
  // For each chunk the sums for weight, bias and bias_below.
  const std::int64_t width = 3 * n;
  context.for_chunks([&](int, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, width);
    float* bias_sums = args.parameters.bias == kNoParameter ? nullptr : sums + n;
    for (std::int64_t row = first; row < last; ++row) {
      const float* x = args.x + row * n;
      float* dy = args.dy + row * n;
      float* dx = args.dx + row * n;
      if (args.dy_scale != 1.0f) scale_row(dy, n, args.dy_scale);
      if (args.accumulate == Accumulate::kNo) std::memset(dx, 0, static_cast<std::size_t>(n) * sizeof(float));
      const float inverse = args.statistics.inverse[row];
      if (rms) {
        context.kernels->rms_norm_backward(dy, x, weight, inverse, n, dx, sums);
      } else {
        context.kernels->layer_norm_backward(dy, x, weight, args.statistics.mean[row], inverse, n, dx, sums, bias_sums);
      }
      if (sum_dx) context.kernels->add(dx, n, sums + 2 * n);
      context.pack_operand(dx, n, context.operand_at(args.dx_operand, row * n));
    }
  });
  fold_partial_sums(context, width);
  add_folded(context, 0, n, args.parameters.weight);
  add_folded(context, n, n, args.parameters.bias);
  add_folded(context, 2 * n, n, args.bias_below);
}

void activation(const TrainContext& context, const ActivationArgs& args) {
  const std::int64_t n = context.config->ff_dim;
  const std::int64_t width = context.ffn_in_dim();
  const auto rows = [&](const auto& compute) {
    context.for_rows(context.rows(), [&](int member, std::int64_t row) {
      void* place = context.operand_at(args.hidden, row * n);
      float* y = context.operand_row(place, context.scratch_of(member));
      compute(row, args.in + row * width, y);
      context.pack_operand(y, n, place);
    });
  };
  const TrainingKernels& kernels = *context.kernels;
  if (context.config->mlp == MlpKind::kPlain) {
    rows([&](std::int64_t, const float* in, float* y) { kernels.gelu(in, n, y); });
  } else if (context.options.fusion.swiglu) {
    rows([&](std::int64_t, const float* in, float* y) { kernels.silu_mul(in, in + n, n, y); });
  } else {
    // Apart, as a framework without fusion does it: the activation, then its matmul with `up`.
    context.for_rows(context.rows(), [&](int member, std::int64_t row) {
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
  const TrainingKernels& kernels = *context.kernels;
  const std::int64_t n = context.config->ff_dim;
  const std::int64_t width = context.ffn_in_dim();
  const bool gated = context.config->mlp == MlpKind::kGated;
  const bool sum = args.gate_bias != kNoParameter || args.up_bias != kNoParameter;
  context.for_chunks([&](int member, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = sum ? clear_partial_sums(context, chunk, width) : nullptr;
    float* scratch = context.scratch_of(member);
    for (std::int64_t row = first; row < last; ++row) {
      const float* in = args.forward.in + row * width;
      float* dhidden = args.dhidden + row * n;
      void* place = context.operand_at(args.din, row * width);
      float* din = context.operand_row(place, scratch);
      if (!gated) {
        kernels.gelu_backward(dhidden, in, n, din);
      } else if (context.options.fusion.swiglu) {
        kernels.silu_mul_backward(dhidden, in, in + n, n, din, din + n);
      } else {
        separate_swiglu_backward(kernels, in, args.forward.silu + row * n, dhidden, n, din, scratch + width);
      }
      if (sum) kernels.add(din, width, sums);
      context.pack_operand(din, width, place);
    }
  });
  if (!sum) return;
  fold_partial_sums(context, width);
  add_folded(context, 0, n, args.gate_bias);
  add_folded(context, gated ? n : 0, n, args.up_bias);
}

void add_column_sums(const TrainContext& context, const ColumnSumArgs& args) {
  context.for_chunks([&](int, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, args.count);
    for (std::int64_t row = first; row < last; ++row)
      context.kernels->add(args.x + row * args.stride, args.count, sums);
  });
  fold_partial_sums(context, args.count);
  add_folded(context, 0, args.count, args.offset);
}

std::int64_t partial_sum_width(const TrainContext& context) {
  return std::max({3 * std::int64_t{context.config->model_dim}, context.ffn_in_dim(), context.qkv_dim()});
}

std::int64_t pass_scratch_floats(const TrainContext& context) {
  const std::int64_t swiglu = context.ffn_in_dim() + 2 * std::int64_t{context.config->ff_dim};
  return std::max<std::int64_t>(context.config->model_dim, swiglu);
}

}  // namespace butterfly
