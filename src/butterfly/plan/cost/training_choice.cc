#include "butterfly/plan/cost/training_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "butterfly/base/units.h"

namespace butterfly {
namespace {

bool fits(const TrainCandidate& one) {
  return one.missing_bytes == 0;
}

std::string memory_of(const TrainCandidate& one) {
  if (one.available_bytes == 0) {
    return fmt::format("{} per rank, of a memory that is not known", format_bytes(one.memory_bytes));
  }
  return fmt::format("{} of {} per rank", format_bytes(one.memory_bytes), format_bytes(one.available_bytes));
}

/// Why the ones before it were not taken; empty where there are none.
std::string why_not_simpler(std::span<const TrainCandidate> candidates, const TrainCandidate& chosen) {
  std::string text;
  for (const TrainCandidate& one : candidates) {
    if (one.strategy >= chosen.strategy) break;
    text += fmt::format("; {} ", to_string(one.strategy));
    text += fits(one) ? fmt::format("would take {} a step instead of {}", format_seconds(one.step_s),
                                    format_seconds(chosen.step_s))
                      : fmt::format("lacks {} per rank", format_bytes(one.missing_bytes));
  }
  return text;
}

/// Why the ones behind it were not.
std::string why_not_later(std::span<const TrainCandidate> candidates, const TrainCandidate& chosen) {
  std::string text;
  for (const TrainCandidate& one : candidates) {
    if (one.strategy <= chosen.strategy) continue;
    text += fmt::format("; {} would need {} and take {} a step", to_string(one.strategy),
                        format_bytes(one.memory_bytes), format_seconds(one.step_s));
  }
  return text;
}

}  // namespace

TrainCandidate candidate(TrainStrategy strategy, const TrainPrediction& prediction, const PlanCluster& cluster) {
  TrainCandidate found{.strategy = strategy, .step_s = prediction.step_s};
  for (std::size_t node = 0; node < prediction.nodes.size(); ++node) {
    const TrainNodePrediction& one = prediction.nodes[node];
    found.missing_bytes = std::max(found.missing_bytes, one.missing_bytes);
    if (one.memory_bytes() <= found.memory_bytes) continue;
    found.memory_bytes = one.memory_bytes();
    found.available_bytes = cluster.nodes[node].memory_bytes;
  }
  return found;
}

TrainChoice choose_training(std::span<const TrainCandidate> candidates) {
  const TrainCandidate* chosen = nullptr;
  for (const TrainCandidate& one : candidates) {
    if (!fits(one)) continue;
    if (chosen == nullptr || one.step_s < (1.0 - kWorthDividing) * chosen->step_s) chosen = &one;
  }
  if (chosen == nullptr) {
    const TrainCandidate& least = *std::ranges::min_element(candidates, {}, &TrainCandidate::missing_bytes);
    return {.strategy = least.strategy,
            .fits = false,
            .reason = fmt::format("nothing fits; {} lacks least, {} per rank: more ranks, smaller micro-batches or "
                                  "more memory would help",
                                  to_string(least.strategy), format_bytes(least.missing_bytes))};
  }
  return {
      .strategy = chosen->strategy,
      .fits = true,
      .reason = fmt::format("it fits ({}) and takes {} a step{}{}", memory_of(*chosen), format_seconds(chosen->step_s),
                            why_not_simpler(candidates, *chosen), why_not_later(candidates, *chosen))};
}

}  // namespace butterfly
