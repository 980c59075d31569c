// The passes of a step on a rank that is a stage of a pipeline. Used by the thread that trains.
#pragma once

#include <cstdint>
#include <span>

#include "butterfly/base/result.h"
#include "butterfly/train/step/phase_clock.h"
#include "butterfly/train/step/train_step.h"

namespace butterfly {

/// Rows on their way between the stages of a pipeline, to and from this one. Sending waits for nobody.
class StreamLinks {
 public:
  StreamLinks(PartPasses& passes, Collectives& collectives, const StagePlace& place)
      : passes_(passes), collectives_(collectives), place_(place) {}

  /// What embed() left, to the first stage. Errors here and below: those of the collectives.
  Status send_embedded(int micro_batch);
  /// The stream before this stage's layers, to where `at` keeps it, and what routers have counted in those before.
  Status receive_forward(int micro_batch, int at);
  Status send_forward(int micro_batch, int at);
  /// The gradient of the stream behind this stage's layers, and what all routers have counted.
  Status receive_backward(int micro_batch, int at);
  Status send_backward(int micro_batch, int at);
  /// The first stage's, for embed_backward().
  Status receive_embedding_gradient(int micro_batch);

  /// By what was asked for above.
  std::uint64_t formula_bytes() const { return formula_bytes_; }
  double waited_s() const { return waited_s_; }

 private:
  enum class Kind : std::uint8_t { kStream, kGradient, kTally, kTallyBack };
  Status send(int to, Kind kind, int micro_batch, std::span<const float> rows);
  Status receive(int from, Kind kind, int micro_batch, std::span<float> rows);
  Status send_tally(int to, Kind kind, int micro_batch, const RouterTally& tally);
  Status receive_tally(int from, Kind kind, int micro_batch, RouterTally& tally);

  PartPasses& passes_;
  Collectives& collectives_;
  const StagePlace& place_;
  std::uint64_t formula_bytes_ = 0;
  double waited_s_ = 0.0;
};

/// One step's passes in the order of context.stages->step. Adds to report.reduced what travelled. Errors: those of the
/// transformer and the collectives.
Status pass_stages(StepContext& context, std::int64_t step, StepReport& report, PhaseClock& clock);

}  // namespace butterfly
