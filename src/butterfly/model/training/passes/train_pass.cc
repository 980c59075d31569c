#include "butterfly/model/training/passes/train_pass.h"

#include <cstring>

#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

void norm_row(const TrainContext& context, const NormParameters& parameters, const NormStatistics& statistics,
              std::int64_t row, const float* x, float* y) {
  const ModelConfig& config = *context.config;
  const float* weight = context.weights + parameters.weight;
  if (config.norm == NormKind::kRms) {
    context.kernels->rms_norm(x, weight, config.norm_epsilon, config.model_dim, y, statistics.inverse + row);
  } else {
    context.kernels->layer_norm(x, weight, context.weight_at(parameters.bias), config.norm_epsilon, config.model_dim, y,
                                statistics.mean + row, statistics.inverse + row);
  }
}

/// What the norm's backward pass adds: to dx, and to the sums for weight and bias, which may be null.
struct NormSlopes {
  float* dx = nullptr;
  float* weight_sums = nullptr;
  float* bias_sums = nullptr;
};
void norm_row_backward(const TrainContext& context, const NormParameters& parameters, const NormStatistics& statistics,
                       std::int64_t row, const float* x, const float* dy, const NormSlopes& slopes) {
  const std::int64_t n = context.config->model_dim;
  const float* weight = context.weights + parameters.weight;
  const float inverse = statistics.inverse[row];
  if (context.config->norm == NormKind::kRms) {
    context.kernels->rms_norm_backward(dy, x, weight, inverse, n, slopes.dx, slopes.weight_sums);
  } else {
    context.kernels->layer_norm_backward(dy, x, weight, statistics.mean[row], inverse, n, slopes.dx, slopes.weight_sums,
                                         slopes.bias_sums);
  }
}

void scale_row(float* x, std::int64_t n, float scale) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= scale;
}

}  // namespace

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

void residual_norm(const TrainContext& context, const ResidualNormArgs& args) {
  const std::int64_t n = context.config->model_dim;
  const float* weight = context.weight_at(args.parameters.weight);
  const bool adds = args.delta != nullptr;
  const trace::Scope scope(trace::Zone::kNorm,
                           work_of({.rows = context.rows(),
                                    .cols = n,
                                    .bytes = (adds ? 3 : 1) * sizeof(float) + context.operand_bytes(),
                                    .pass = context.pass}));
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
    if (weight == nullptr) {
      std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      norm_row(context, args.parameters, args.statistics, row, x, y);
    }
    if (args.scale != 1.0f) scale_row(y, n, args.scale);
    context.pack_operand(y, n, place);
  });
}

void norm_backward(const TrainContext& context, const NormBackwardArgs& args) {
  const std::int64_t n = context.config->model_dim;
  const bool identity = args.parameters.weight == kNoParameter;
  const bool sum_dx = args.bias_below != kNoParameter;
  const trace::Scope scope(trace::Zone::kNorm,
                           work_of({.rows = context.rows(),
                                    .cols = n,
                                    .bytes = 4 * sizeof(float) + (context.bf16() ? 2 : 0),  // x, dy, dx in and out
                                    .pass = trace::Pass::kInputGradient}));
  // For each chunk the sums for weight, bias and bias_below.
  const std::int64_t width = 3 * n;
  context.for_chunks([&](int, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, width);
    float* bias_sums = args.parameters.bias == kNoParameter ? nullptr : sums + n;
    for (std::int64_t row = first; row < last; ++row) {
      float* dy = args.dy + row * n;
      float* dx = args.dx + row * n;
      if (args.dy_scale != 1.0f) scale_row(dy, n, args.dy_scale);
      if (args.accumulate == Accumulate::kNo) std::memset(dx, 0, static_cast<std::size_t>(n) * sizeof(float));
      if (identity) {
        context.kernels->add(dy, n, dx);
      } else {
        norm_row_backward(context, args.parameters, args.statistics, row, args.x + row * n, dy,
                          {.dx = dx, .weight_sums = sums, .bias_sums = bias_sums});
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

void output_norm(const TrainContext& context, const OutputNormArgs& args) {
  const std::int64_t n = context.config->model_dim;
  const float scale = context.config->residual_scale;
  const bool normed = args.parameters.weight != kNoParameter;
  if (!normed && scale == 1.0f) return;
  const trace::Scope scope(
      trace::Zone::kNorm,
      work_of({.rows = context.rows(), .cols = n, .bytes = 2 * sizeof(float), .pass = context.pass}));
  context.for_rows(context.rows(), [&](int, std::int64_t row) {
    float* y = args.y + row * n;
    if (normed) norm_row(context, args.parameters, args.statistics, row, args.x + row * n, y);
    if (scale != 1.0f) scale_row(y, n, scale);
  });
}

void output_norm_backward(const TrainContext& context, const OutputNormBackwardArgs& args) {
  const std::int64_t n = context.config->model_dim;
  const NormParameters& parameters = args.forward.parameters;
  const float scale = context.config->residual_scale;
  const bool identity = parameters.weight == kNoParameter;
  const trace::Scope scope(trace::Zone::kNorm,
                           work_of({.rows = context.rows(),
                                    .cols = n,
                                    .bytes = (identity ? 2 : 3) * sizeof(float) + (context.bf16() ? 2 : 0),
                                    .pass = trace::Pass::kInputGradient}));
  // For each chunk the sums for weight, bias and the biases below.
  const std::int64_t width = 3 * n;
  context.for_chunks([&](int member, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, width);
    float* bias_sums = parameters.bias == kNoParameter ? nullptr : sums + n;
    float* dy = context.scratch_of(member);
    for (std::int64_t row = first; row < last; ++row) {
      float* dx = args.dx + row * n;
      const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
      std::memcpy(dy, args.dy + row * n, bytes);
      if (scale != 1.0f) scale_row(dy, n, scale);
      if (identity) {
        std::memcpy(dx, dy, bytes);
      } else {
        std::memset(dx, 0, bytes);
        norm_row_backward(context, parameters, args.forward.statistics, row, args.forward.x + row * n, dy,
                          {.dx = dx, .weight_sums = sums, .bias_sums = bias_sums});
      }
      context.kernels->add(dx, n, sums + 2 * n);
      context.pack_operand(dx, n, context.operand_at(args.dx_operand, row * n));
    }
  });
  fold_partial_sums(context, width);
  add_folded(context, 0, n, parameters.weight);
  add_folded(context, n, n, parameters.bias);
  for (const std::int64_t bias : args.biases) add_folded(context, 2 * n, n, bias);
}

void add_column_sums(const TrainContext& context, const ColumnSumArgs& args) {
  const trace::Scope scope(
      trace::Zone::kBias,
      work_of(
          {.rows = context.rows(), .cols = args.count, .bytes = sizeof(float), .pass = trace::Pass::kWeightGradient}));
  context.for_chunks([&](int, std::int64_t chunk, std::int64_t first, std::int64_t last) {
    float* sums = clear_partial_sums(context, chunk, args.count);
    for (std::int64_t row = first; row < last; ++row)
      context.kernels->add(args.x + row * args.stride, args.count, sums);
  });
  fold_partial_sums(context, args.count);
  add_folded(context, 0, args.count, args.offset);
}

std::int64_t partial_sum_width(const TrainContext& context) {
  return std::max(
      {3 * std::int64_t{context.config->model_dim}, context.ffn_in_dim(), context.qkv_dim(), context.router_dim()});
}

std::int64_t pass_scratch_floats(const TrainContext& context) {
  const ModelConfig& config = *context.config;
  const std::int64_t widest = std::max({config.ff_dim, config.moe.ff_dim, config.moe.shared_ff_dim});
  const std::int64_t mlp = context.mlp_in_dim(widest) + 2 * widest;
  const std::int64_t slopes = config.logit_cap != 0.0f ? config.vocab : 0;  // of one row of capped logits
  return std::max({std::int64_t{config.model_dim}, mlp, slopes, context.qkv_dim(), 3 * context.router_dim()});
}

}  // namespace butterfly
