// How the gradients of a step become the sum over all its micro-batches, wherever they were computed. One step at a
// time, by the thread that trains; abort() of the collectives underneath wakes it. The sum is in
// ParameterSet::gradients() after finish(), the same on every rank.
#pragma once

#include <cstdint>
#include <memory>

#include "butterfly/base/result.h"
#include "butterfly/model/parameters.h"

namespace butterfly {

/// The micro-batches [first, last) of a step's `total` that this rank computes.
struct MicroBatches {
  int first = 0;
  int last = 0;
  int total = 0;
};

struct ReduceReport {
  std::uint64_t bytes_sent = 0;      // payloads of gradients on this rank
  std::uint64_t formula_bytes = 0;   // what the algorithm should send; the audit compares
  double communication_s = 0.0;      // inside collectives
  double exposed_s = 0.0;            // of them, not hidden behind the backward pass
  double codec_s = 0.0;
  std::uint64_t uncompressed_bytes = 0;
};

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  virtual void begin_step(const MicroBatches& share) = 0;
  /// During backward() of a micro-batch, from the end of the flat array to its beginning.
  virtual void gradients_ready(int micro_batch, ParameterRange range) = 0;
  /// After backward() of a micro-batch; the gradients may be taken away and zeroed here.
  virtual void micro_batch_done(int micro_batch) = 0;
  /// Errors: those of the collectives; the step has not happened then.
  virtual Result<ReduceReport> finish() = 0;
};

/// One rank: gradients add up where they are, or in the canonical tree where `deterministic`.
std::unique_ptr<GradientReducer> make_local_reducer(ParameterSet& parameters, bool deterministic);

}  // namespace butterfly
