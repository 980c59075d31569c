// A model of any shape with seeded random weights, for benchmarks and tests: nothing is stored, each weight is made
// when it is asked for, the same on every machine. Activations keep the scale that trained models have.
#pragma once

#include <cstdint>

#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"

namespace butterfly {

struct RandomWeights {
  std::uint64_t seed = 0;
  DType type = DType::kF32;  // of the matrices; rows that no block of 32 divides are F16. Vectors are F32.
};

/// Matrices have zero mean and standard deviation 1/sqrt(columns), norms are 1. The vocabulary is SentencePiece with
/// byte fallback and placeholders, or none where config.vocab is below 512.
/// Errors: those of validate(); kUnsupported for type kI32.
Result<Checkpoint> random_checkpoint(const ModelConfig& config, const RandomWeights& options);

}  // namespace butterfly
