// Where the time of a step goes: into its report, and as spans. Used by the thread that trains.
#pragma once

#include <algorithm>
#include <cstdint>

#include "butterfly/trace/trace.h"
#include "butterfly/train/step/train_step.h"

namespace butterfly {

struct Phase {
  trace::Zone zone;
  double StepPhases::*sum;
};
inline constexpr Phase kData{trace::Zone::kPhaseData, &StepPhases::data_s};
inline constexpr Phase kForwardPass{trace::Zone::kPhaseForward, &StepPhases::forward_s};
inline constexpr Phase kBackwardPass{trace::Zone::kPhaseBackward, &StepPhases::backward_s};
inline constexpr Phase kCommunication{trace::Zone::kPhaseCommunication, &StepPhases::communication_exposed_s};
inline constexpr Phase kOptimizer{trace::Zone::kPhaseOptimizer, &StepPhases::optimizer_s};

/// Gives the time since the last call to a phase, in the report and as a span. A step that fails leaves no span of it.
class PhaseClock {
 public:
  explicit PhaseClock(StepReport& report) : report_(report) {}
  void lap(const Phase& phase, int micro_batch = 0) { end(phase, micro_batch, trace::now_ns()); }
  /// Of which `waited_s` were spent waiting for other ranks: as its end, wherever in it they were. The seconds without.
  double lap_of_pass(const Phase& phase, int micro_batch, double waited_s) {
    const std::uint64_t now = trace::now_ns(), began = last_;
    const auto waited = std::min(now - last_, static_cast<std::uint64_t>(waited_s * 1e9));
    end(phase, micro_batch, now - waited);
    if (waited > 0) end(kCommunication, micro_batch, now);
    return static_cast<double>(now - waited - began) * 1e-9;
  }
  void stop(const StepContext& context) {
    const std::uint64_t now = trace::now_ns();
    const Collectives* ranks = context.collectives;
    trace::record(trace::Zone::kStepTrain, begin_, now,
                  {.number = static_cast<std::uint32_t>(report_.step),
                   .in = static_cast<std::uint32_t>(ranks == nullptr ? 0 : ranks->rank()),
                   .out = static_cast<std::uint32_t>(ranks == nullptr ? 1 : ranks->size())});
    const std::int64_t sequences = std::int64_t{context.share.last - context.share.first} * context.micro_batch;
    const std::int64_t tokens = sequences * context.transformer.options().seq;
    // Those of a pipeline go through all of its ranks.
    if (context.stages == nullptr || context.stages->is_last()) {
      trace::add(trace::Counter::kTrainTokens, static_cast<std::uint64_t>(tokens));
    }
    report_.phases.total_s = static_cast<double>(now - begin_) * 1e-9;
  }

 private:
  void end(const Phase& phase, int micro_batch, std::uint64_t now) {
    trace::record(phase.zone, last_, now, {.number = static_cast<std::uint32_t>(micro_batch)});
    report_.phases.*phase.sum += static_cast<double>(now - last_) * 1e-9;
    last_ = now;
  }

  StepReport& report_;
  const std::uint64_t begin_ = trace::now_ns();
  std::uint64_t last_ = begin_;
};

}  // namespace butterfly
