#include "butterfly/plan/forecast.h"

#include <algorithm>
#include <cmath>

namespace butterfly {

Result<PlanPrediction> forecast(const ModelConfig& config, const PlanCluster& cluster, const Plan& plan, DType kv_type,
                                const RunShape& run) {
  BF_ASSIGN_OR_RETURN(PredictionInput input,
                      prediction_input(config, cluster, {.sequences = run.sequences, .kv_type = kv_type}));
  // Decode is predicted halfway through the context.
  input.load.context = static_cast<std::uint64_t>(2 * run.prompt + run.generated);
  input.load.prompt = static_cast<std::uint64_t>(std::max(run.prompt, 1));
  input.load.chunk = static_cast<std::uint64_t>(std::max(run.chunk, 1));
  return predict(input, plan.shares()).whole;
}

std::optional<double> prediction_error(double predicted, double measured) {
  if (!std::isfinite(predicted) || predicted <= 0.0 || !std::isfinite(measured) || measured <= 0.0) return std::nullopt;
  return measured / predicted - 1.0;
}

}  // namespace butterfly
