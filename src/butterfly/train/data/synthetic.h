// Corpora that are made while they are read, for benchmarks and audits: no files, known entropy. Plain function; the
// dataset is immutable and thread-safe.
#pragma once

#include <memory>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/train/data/dataset.h"

namespace butterfly {

/// What config.files names: "synthetic:random" or "synthetic:markov" (open_dataset() says what they are). Errors:
/// kNotFound for another name, kInvalidArgument for a vocabulary of fewer than 4 tokens.
Result<std::unique_ptr<Dataset>> make_synthetic(const DataConfig& config, const DatasetOptions& options);

}  // namespace butterfly
