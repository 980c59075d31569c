// The largest micro-batch that memory holds: predicted from the transformer's plan, then tried. One call at a time; it
// allocates what it tries.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

struct BatchTrial {
  int micro_batch = 0;                // sequences
  std::uint64_t predicted_bytes = 0;  // weights, gradients, moments, activations, scratch
  bool fits = false;                  // and was tried
  double tokens_per_s = 0.0;          // forward and backward, the second time
};

struct FindBatchOptions {
  TransformerOptions transformer{};  // its micro_batch is not looked at
  std::uint64_t moment_arrays = 2;   // of the optimizer, as long as the weights
  std::uint64_t memory_bytes = 0;    // that a run may use
  int micro_batch_max = 4096;
};

/// Doubles from 1 while the prediction is within the memory and the trial succeeds. The last trial does not fit, unless
/// micro_batch_max is reached. Errors: kNoMemory where not even 1 fits, naming both sizes; those of
/// TrainableTransformer.
Result<std::vector<BatchTrial>> find_batch(const ModelConfig& shape, const FindBatchOptions& options,
                                           const std::function<void(const BatchTrial&)>& tried);

/// Work of one training step, three times forward_flops_per_token().
double training_flops_per_token(const ModelConfig& shape, int seq);

}  // namespace butterfly
