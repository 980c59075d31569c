// Tokens to train on, and which of them a step uses: a function of (seed, step, sequence) alone, so that a resumed run
// and any number of ranks see the same. Memory-mapped; immutable after open; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"

namespace butterfly {

struct DatasetStats {
  std::int64_t train_tokens = 0;
  std::int64_t validation_tokens = 0;
  /// Nats per token of the training tokens' frequencies: what a model reaches that looks at no context. A run that ends
  /// above it has learned nothing.
  double unigram_entropy = 0.0;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual DatasetStats stats() const = 0;
  virtual int vocab() const = 0;

  /// Sequence `index` (of global_batch) of step `step`: tokens[seq] and targets[seq], the tokens that follow. Epochs are
  /// permutations of non-overlapping windows, shifted by a seeded offset in each.
  virtual void sequence(std::int64_t step, int index, std::span<TokenId> tokens, std::span<TokenId> targets) const = 0;

  /// Windows of the validation part, in order, each target once; the last may be padded with targets of -1.
  virtual std::int64_t validation_windows(int seq) const = 0;
  virtual void validation_window(std::int64_t window, std::span<TokenId> tokens, std::span<TokenId> targets) const = 0;
};

}  // namespace butterfly
