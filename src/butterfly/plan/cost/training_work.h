// What predictions of training steps share: constants of what passes move, and rates of a node. Plain functions.
#pragma once

#include <limits>

#include "butterfly/plan/cost/training_cost.h"

namespace butterfly {

inline constexpr double kBackwardOverForward = 2.0;  // gradients of inputs and of weights: a matmul each
inline constexpr double kAdamWBytes = 7 * 4.0;  // weight, gradient and two moments read, all but the gradient written

// Every kept float is written and read once in the forward pass; the backward pass reads it, and writes and reads its
// gradient.
inline constexpr double kForwardTouches = 2.0, kBackwardTouches = 3.0;

struct TrainRates {
  double flops_per_s = 0.0, memory_bytes_per_s = 0.0;
  double uncertainty = kDescribedUncertainty;
};
/// Matmuls as measured in training, or else with F32 weights.
TrainRates train_rates(const NodeDescriptor& node);

/// A rate of 0 is unknown: whatever needs it takes forever.
inline double divide(double amount, double per_s) {
  return per_s > 0.0 ? amount / per_s : std::numeric_limits<double>::infinity();
}

/// Floats that the backward pass of a block needs of each position.
double activation_floats(const ModelConfig& config, int layer);

}  // namespace butterfly
