// Weights of a block as it computes with them: packed matrices with their biases, vectors in float. Immutable after
// loading, thread-safe to read.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/kernel/packed/packed_matrix.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/core/weights.h"
#include "butterfly/model/inference/compute.h"

namespace butterfly {

/// An affine map; bias is empty where the family has none.
struct LinearWeights {
  PackedMatrix matrix;      // [outputs, inputs]
  std::vector<float> bias;  // [outputs]
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
  std::uint64_t bytes() const { return matrix.bytes() + bias.size() * sizeof(float); }
};

/// The part of an affine map that this node holds; where it is empty, nothing but a bias of its rows is loaded.
struct LinearPart {
  WeightPart matrix{};  // [outputs, inputs]
  bool with_bias = false;
};

/// Errors of both: those of WeightSource::find_part and PackedMatrix::pack. The source's pages are released after use.
Result<LinearWeights> load_linear(const WeightSource& source, const std::string& name, const LinearPart& part,
                                  ThreadTeam& team);
/// The elements `held` of a vector of `size`.
Result<std::vector<float>> load_vector(const WeightSource& source, const std::string& name, std::int64_t size,
                                       const IndexRange& held);

/// y = activation(x) of a row.
using PlainActivation = void (*)(const float* x, long n, float* y);
PlainActivation plain_activation(const Kernels& kernels, Activation activation);

/// up, whose rows h has, becomes what the MLP's activation makes of gate and up (of up alone where the MLP is plain),
/// quantised as the next matrix reads it. limit: MoeConfig::swiglu_limit.
struct MlpActivation {
  MlpKind mlp = MlpKind::kGated;
  Activation activation = Activation::kSilu;
  float limit = 0.0f;
  RowForm form{};
};
void activate_rows(const Compute& compute, const MlpActivation& kind, const ActivationRows& h, const float* gate,
                   float* up);

}  // namespace butterfly
