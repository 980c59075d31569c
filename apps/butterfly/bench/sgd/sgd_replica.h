// Synchronous SGD of the small transformer (small_mlp.h) on one of several ranks: every step computes a batch of its
// own, sums gradients over all ranks and updates its weights. For `butterfly bench sgd`. Plain functions; each rank
// calls them on a thread of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/sgd/small_mlp.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

struct SgdOptions {
  int steps = 2000;
  std::size_t batch = 16;  // samples of each rank and step
  float rate = 0.2F;
  std::uint64_t seed = 1;
};

struct SgdRun {
  std::vector<float> weights{};
  std::vector<std::uint32_t> checksums{};  // CRC-32C of the weights after each step
  double first_loss = 0.0;                 // of the first step, mean over all ranks
  double last_loss = 0.0;                  // of the last tenth of the steps, mean over all ranks
  double seconds = 0.0;                    // of all steps, from a barrier on
};

/// Errors: those of the collectives; kBadData (a loss that is no number, with its step).
Result<SgdRun> train_small_mlp(Collectives& collectives, const SgdOptions& options);

/// Whether all ranks had the same weights after every step: compares everyone's checksums, and the SHA-256 of the last
/// weights. Errors: kBadData, naming the first step and the two ranks; those of the collectives.
Status check_replicas(Collectives& collectives, const SgdRun& run);

/// Whether something was learned: errors: kBadData where the last loss is not below half of ln 10, what a guess costs.
Status check_learned(const SgdRun& run);

}  // namespace butterfly
