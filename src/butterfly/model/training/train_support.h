// What can be trained, and what work it is. Plain functions, thread-safe.
#pragma once

#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

/// Whether the configuration has a backward pass. Errors: kUnsupported naming the mechanism that has none.
Status check_trainable(const ModelConfig& config);

/// Operations of one forward pass over one token: of each layer, and of the head.
struct ForwardFlops {
  std::vector<double> layers{};
  double head = 0.0;
};
ForwardFlops forward_flops(const ModelConfig& config, int seq);

/// Work of one forward pass over one token, with the causal half of attention counted, of a window what it leaves
/// (6 N + 6 L C T for all three passes; of experts those that a token goes through): docs/decisions/0012-training.md.
double forward_flops_per_token(const ModelConfig& config, int seq);

}  // namespace butterfly
