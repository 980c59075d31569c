// What a plan would have predicted for a run that is over: to be printed beside what was measured. Pure, thread-safe.
#pragma once

#include "butterfly/plan/partition/plan.h"

namespace butterfly {

/// What a run turned out to be.
struct RunShape {
  int sequences = 1;
  int prompt = 1;     // tokens of each
  int generated = 0;  // tokens of each, after the one that ends its prompt
  int chunk = 512;    // prompt tokens in one step
};

struct RunForecast {
  PlanPrediction plan;     // by the closed formulas
  double simulated_s = 0;  // the whole run, all sequences begun together, by the simulator; 0 where it cannot
};

/// `cluster` with the groups of `plan` that measured their exchanges before it ran; `exchanges` of each share.
PlanCluster with_exchanges(PlanCluster cluster, const Plan& plan, std::span<const ExchangeTimes> exchanges);

/// Predictions of `plan` for such a run, in which a decode step looks back on the prompt and half of what is
/// generated. Nothing of the run itself goes into it. Errors: those of prediction_input().
Result<RunForecast> forecast(const ModelConfig& config, const PlanCluster& cluster, const Plan& plan, DType kv_type,
                             const RunShape& run);

/// measured / predicted - 1; nothing where either is unknown.
std::optional<double> prediction_error(double predicted, double measured);

}  // namespace butterfly
