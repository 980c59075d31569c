// A plan as the simulator runs it: the times and bytes of its predictions, step by step instead of in the mean.
#pragma once

#include "butterfly/plan/partition/plan.h"
#include "butterfly/plan/simulation/simulator.h"

namespace butterfly {

/// `input` and its cluster must outlive the result.
SimulatedPipeline simulated(const PredictionInput& input, const Plan& plan);

}  // namespace butterfly
