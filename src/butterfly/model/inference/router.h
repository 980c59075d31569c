// Which experts each token goes through, and with which weights. Immutable after loading; choose() is thread-compatible
// (one call at a time per Compute). The same on every node: all members of a group choose for themselves.
#pragma once

#include <span>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/inference/linear_weights.h"

namespace butterfly {

/// For each row the experts, ascending, and what their results are multiplied with. Memory of the arena.
struct ExpertChoice {
  std::int64_t rows = 0;
  int used = 0;
  std::span<int> experts;    // [rows, used]
  std::span<float> weights;  // [rows, used]
};

class Router {
 public:
  static Result<Router> load(const ModelConfig& config, const std::string& prefix, const WeightSource& source,
                             ThreadTeam& team);

  /// `x` has floats, and blocks where the matrix is quantised. Errors: kNoMemory (scratch).
  Result<ExpertChoice> choose(const Compute& compute, const ActivationRows& x) const;

  const PackedMatrix& matrix() const { return matrix_.matrix; }
  std::uint64_t packed_bytes() const;

 private:
  MoeConfig config_;
  LinearWeights matrix_;
  std::vector<float> choice_bias_;  // empty: none
};

/// One row of the choice. `scores` are the router's logits and become scratch, as `choice` is from the beginning; both
/// have config.experts elements. The bias may be null. Order of operations:
///   kSoftmax, kSigmoid: s = kernel(logits), compared by s, or by s + bias where there is one;
///   kSoftmaxOfChosen: compared by the logits (+ bias), s = softmax of the chosen ones, ascending by expert.
/// Groups are compared by their largest score or the sum of the two largest. Of equals the lower index is chosen.
/// weight = s; where renormalised / (sum of s, ascending, + epsilon); * scale.
void choose_experts(const Kernels& kernels, const MoeConfig& config, const float* choice_bias, std::span<float> scores,
                    std::span<float> choice, std::span<int> experts, std::span<float> weights);

}  // namespace butterfly
