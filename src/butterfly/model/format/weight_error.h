// How far the weights of one file are from those of another of the same model. Thread-safe.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

struct WeightError {
  std::string name{};
  DType type = DType::kF32;  // of the weight that is judged
  double relative = 0;       // root of the mean square of its differences, over that of the other's values
};

/// Of each matrix that the model needs, in order. Errors: those of the sources; kBadData naming both shapes of a
/// weight; kCancelled.
Result<std::vector<WeightError>> weight_errors(const Checkpoint& judged, const Checkpoint& against,
                                               const std::stop_token& stop = {});

}  // namespace butterfly
