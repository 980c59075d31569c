#include "butterfly/model/training/passes/train_projection.h"

#include <algorithm>

namespace butterfly {
namespace {

/// Whether `next` continues `part` in the flat arrays.
bool continues(const Projection::Part& part, const Projection::Part& next, std::int64_t cols) {
  if (next.weight != part.weight + part.rows * cols) return false;
  if (part.bias == kNoParameter || next.bias == kNoParameter) return part.bias == next.bias;
  return next.bias == part.bias + part.rows;
}

/// What no matmul writes.
void clear_unwritten(const TrainContext& context, const Projection& projection) {
  if (context.weight_gradients == Accumulate::kYes) return;
  for (int i = 0; i < projection.count; ++i) {
    const Projection::Part& part = projection.parts[static_cast<std::size_t>(i)];
    std::fill_n(context.gradients + part.weight, part.rows * projection.cols, 0.0f);
  }
}

}  // namespace

std::int64_t Projection::rows() const {
  std::int64_t total = 0;
  for (int i = 0; i < count; ++i) total += parts[static_cast<std::size_t>(i)].rows;
  return total;
}

Result<Projection> make_projection(const ParameterSet& parameters, std::initializer_list<std::string> names,
                                   Join join) {
  Projection projection;
  for (const std::string& name : names) {
    BF_ASSIGN_OR_RETURN(const Parameter* weight, parameters.find(name + ".weight"));
    const auto bias = parameters.find(name + ".bias");
    const Projection::Part part{
        .weight = weight->offset, .bias = bias ? (*bias)->offset : kNoParameter, .rows = weight->rows};
    projection.cols = weight->cols;
    Projection::Part* last =
        projection.count > 0 ? &projection.parts[static_cast<std::size_t>(projection.count - 1)] : nullptr;
    if (join == Join::kYes && last != nullptr && continues(*last, part, projection.cols)) {
      last->rows += part.rows;
    } else {
      projection.parts[static_cast<std::size_t>(projection.count++)] = part;
    }
  }
  return projection;
}

Status project(const TrainContext& context, const Projection& projection, const void* x, float* y,
               const ProjectOptions& options) {
  const std::int64_t rows = options.rows < 0 ? context.rows() : options.rows;
  if (rows == 0) return {};
  const std::int64_t stride = projection.rows();
  std::int64_t at = 0;
  for (int i = 0; i < projection.count; ++i) {
    const Projection::Part& part = projection.parts[static_cast<std::size_t>(i)];
    BF_TRY(context.gemm->run({.m = rows,
                              .n = part.rows,
                              .k = projection.cols,
                              .a = x,
                              .b = context.operand_at(context.operand_weights, part.weight),
                              .c = y + at,
                              .a_stride = projection.cols,
                              .b_stride = projection.cols,
                              .c_stride = stride,
                              .b_transposed = Transpose::kYes,
                              .accumulate = options.accumulate,
                              .bias = part.bias == kNoParameter ? nullptr : context.weights + part.bias}));
    at += part.rows;
  }
  return {};
}

Status project_backward(const TrainContext& context, const Projection& projection, const void* dy, const void* x,
                        float* dx, const ProjectOptions& options) {
  const std::int64_t rows = options.rows < 0 ? context.rows() : options.rows;
  if (rows == 0) {
    clear_unwritten(context, projection);
    return {};
  }
  const std::int64_t stride = projection.rows();
  std::int64_t at = 0;
  for (int i = 0; i < projection.count; ++i) {
    const Projection::Part& part = projection.parts[static_cast<std::size_t>(i)];
    BF_TRY(context.gemm->run({.m = rows,
                              .n = projection.cols,
                              .k = part.rows,
                              .a = context.operand_at(dy, at),
                              .b = context.operand_at(context.operand_weights, part.weight),
                              .c = dx,
                              .a_stride = stride,
                              .b_stride = projection.cols,
                              .c_stride = projection.cols,
                              .accumulate = i > 0 ? Accumulate::kYes : options.accumulate}));
    BF_TRY(context.gemm->run({.m = part.rows,
                              .n = projection.cols,
                              .k = rows,
                              .a = context.operand_at(dy, at),
                              .b = x,
                              .c = context.gradients + part.weight,
                              .a_stride = stride,
                              .b_stride = projection.cols,
                              .c_stride = projection.cols,
                              .a_transposed = Transpose::kYes,
                              .accumulate = context.weight_gradients}));
    at += part.rows;
  }
  return {};
}

}  // namespace butterfly
