#include "butterfly/plan/simulation/forecast.h"

#include <algorithm>
#include <cmath>

#include "butterfly/plan/simulation/simulated_plan.h"

namespace butterfly {

PlanCluster with_exchanges(PlanCluster cluster, const Plan& plan, std::span<const ExchangeTimes> exchanges) {
  for (const GroupRange& group : groups_of(plan.stages())) {
    if (group.size() < 2 || group.end > exchanges.size() || !exchanges[group.begin].measured()) continue;
    MeasuredGroup measured;
    measured.times = exchanges[group.begin];
    for (std::size_t i = group.begin; i < group.end; ++i) measured.nodes.push_back(plan.shares[i].node);
    cluster.measured_groups.push_back(std::move(measured));
  }
  return cluster;
}

Result<RunForecast> forecast(const ModelConfig& config, const PlanCluster& cluster, const Plan& plan, DType kv_type,
                             const RunShape& run) {
  BF_ASSIGN_OR_RETURN(PredictionInput input,
                      prediction_input(config, cluster, {.sequences = run.sequences, .kv_type = kv_type}));
  // Decode is predicted halfway through the context.
  const bool answers = input.load.requests == RequestKind::kAnswered;  // in a text of their own
  input.load.context = static_cast<std::uint64_t>((answers ? 0 : 2 * run.prompt) + run.generated);
  input.load.prompt = static_cast<std::uint64_t>(std::max(run.prompt, 1));
  input.load.chunk = static_cast<std::uint64_t>(std::max(run.chunk, 1));
  RunForecast forecast{.plan = predict(input, plan.placement()).whole};
  const auto simulation = simulate(simulated(input, plan), {.requests = run.sequences,
                                                            .prompt = std::max(run.prompt, 1),
                                                            .generated = run.generated + 1,
                                                            .sequences_max = run.sequences,
                                                            .prefill_chunk = std::max(run.chunk, 1)});
  if (simulation) forecast.simulated_s = simulation->seconds;
  return forecast;
}

std::optional<double> prediction_error(double predicted, double measured) {
  if (!std::isfinite(predicted) || predicted <= 0.0 || !std::isfinite(measured) || measured <= 0.0) return std::nullopt;
  return measured / predicted - 1.0;
}

}  // namespace butterfly
