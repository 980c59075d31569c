#include "butterfly/model/training/passes/train_projection.h"

#include <algorithm>
#include <string_view>

#include "butterfly/model/training/passes/train_zones.h"

namespace butterfly {
namespace {

/// Whether `next` continues `part` in the flat arrays.
bool continues(const Projection::Part& part, const Projection::Part& next, std::int64_t cols) {
  if (next.weight != part.weight + part.rows * cols) return false;
  if (part.bias == kNoParameter || next.bias == kNoParameter) return part.bias == next.bias;
  return next.bias == part.bias + part.rows;
}

struct NamedZone {
  std::string_view name;
  trace::Zone zone;
};
constexpr std::array<NamedZone, 11> kMatmulZones{{{"attn_q", trace::Zone::kQuery},
                                                  {"attn_k", trace::Zone::kKey},
                                                  {"attn_v", trace::Zone::kValue},
                                                  {"attn_output", trace::Zone::kAttentionOutput},
                                                  {"ffn_gate_inp", trace::Zone::kRouter},
                                                  {"ffn_gate_inp_shexp", trace::Zone::kRouter},
                                                  {"ffn_gate", trace::Zone::kGate},
                                                  {"ffn_up", trace::Zone::kUp},
                                                  {"ffn_down", trace::Zone::kDown},
                                                  {"output", trace::Zone::kHead},
                                                  {"token_embd", trace::Zone::kHead}}};

/// Of the matrix `name`, "blk.3.attn_q".
trace::Zone zone_of(std::string_view name) {
  const std::string_view block = "blk.";
  if (name.starts_with(block)) name = name.substr(name.find('.', block.size()) + 1);
  const auto* const row = std::ranges::find(kMatmulZones, name, &NamedZone::name);
  if (row != kMatmulZones.end()) return row->zone;
  const bool of_experts = name.find("exps") != std::string_view::npos || name.ends_with("_shexp");
  return of_experts ? trace::Zone::kExperts : trace::Zone::kMatmul;
}

/// Of a matmul with several matrices of which this is the last.
trace::Zone joined_zone(trace::Zone zone) {
  if (zone == trace::Zone::kKey || zone == trace::Zone::kValue) return trace::Zone::kQkv;
  return zone == trace::Zone::kUp ? trace::Zone::kGateUp : zone;
}

/// What no matmul writes.
void clear_unwritten(const TrainContext& context, const Projection& projection) {
  if (context.weight_gradients == Accumulate::kYes) return;
  const trace::Scope scope(trace::Zone::kGradientClear,
                           work_of({.rows = projection.rows(), .cols = projection.cols, .bytes = sizeof(float)}));
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
    const Projection::Part part{.weight = weight->offset,
                                .bias = bias ? (*bias)->offset : kNoParameter,
                                .rows = weight->rows,
                                .zone = zone_of(name)};
    projection.cols = weight->cols;
    Projection::Part* last =
        projection.count > 0 ? &projection.parts[static_cast<std::size_t>(projection.count - 1)] : nullptr;
    if (join == Join::kYes && last != nullptr && continues(*last, part, projection.cols)) {
      last->rows += part.rows;
      last->zone = joined_zone(part.zone);
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
    BF_TRY(run_matmul(context, part.zone, context.pass,
                      {.m = rows,
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
    BF_TRY(run_matmul(context, part.zone, trace::Pass::kInputGradient,
                      {.m = rows,
                       .n = projection.cols,
                       .k = part.rows,
                       .a = context.operand_at(dy, at),
                       .b = context.operand_at(context.operand_weights, part.weight),
                       .c = dx,
                       .a_stride = stride,
                       .b_stride = projection.cols,
                       .c_stride = projection.cols,
                       .accumulate = i > 0 ? Accumulate::kYes : options.accumulate}));
    BF_TRY(run_matmul(context, part.zone, trace::Pass::kWeightGradient,
                      {.m = part.rows,
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
