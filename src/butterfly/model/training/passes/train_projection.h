// Linear maps of a TrainableTransformer: y = x W^T + b, and their gradients, by its Gemm. Weights that lie behind one
// another can be one matmul, which is how Q, K and V, or gate and up, are fused.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/model/training/passes/train_context.h"
#include "butterfly/model/training/passes/train_pass.h"

namespace butterfly {

/// One or several matrices over the same input; their outputs stand beside one another.
struct Projection {
  struct Part {
    std::int64_t weight = kNoParameter;
    std::int64_t bias = kNoParameter;
    std::int64_t rows = 0;  // outputs
    trace::Zone zone = trace::Zone::kMatmul;
  };
  std::array<Part, 3> parts{};
  int count = 0;          // matmuls
  std::int64_t cols = 0;  // inputs
  std::int64_t rows() const;
};

enum class Join : std::uint8_t { kNo, kYes };

/// The matrices of `names` (with ".weight" and, where there is one, ".bias"). kYes: one matmul, where the weights and
/// the biases lie without gaps; else one for each. Errors: kNotFound.
Result<Projection> make_projection(const ParameterSet& parameters, std::initializer_list<std::string> names, Join join);

/// Of some rows alone, or added to what is there.
struct ProjectOptions {
  std::int64_t rows = -1;  // -1: all of the context
  Accumulate accumulate = Accumulate::kNo;
};

/// x: operand [rows, cols]; y: [rows, projection.rows()], written. Errors: those of Gemm, here and below.
Status project(const TrainContext& context, const Projection& projection, const void* x, float* y,
               const ProjectOptions& options = {});

/// dy: operand [rows, projection.rows()]. dx: [rows, cols], written; weights' gradients: added to, or
/// written (TrainContext::weight_gradients), also where there are no rows. Biases' are not touched: they are sums over
/// rows (train_pass.h).
Status project_backward(const TrainContext& context, const Projection& projection, const void* dy, const void* x,
                        float* dx, const ProjectOptions& options = {});

}  // namespace butterfly
