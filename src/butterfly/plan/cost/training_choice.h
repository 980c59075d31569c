// Which strategy of training to take, and why. Pure arithmetic, thread-safe.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "butterfly/plan/cost/training_cost.h"

namespace butterfly {

/// What speaks for or against one, for each rank.
struct TrainCandidate {
  TrainStrategy strategy = TrainStrategy::kDdp;
  double step_s = 0.0;
  std::uint64_t memory_bytes = 0;     // of the fullest rank
  std::uint64_t available_bytes = 0;  // 0: unknown
  std::uint64_t missing_bytes = 0;    // on the rank that lacks most
};
TrainCandidate candidate(TrainStrategy strategy, const TrainPrediction& prediction, const PlanCluster& cluster);

/// A strategy that divides more has to be this much faster than one that divides less and fits.
inline constexpr double kWorthDividing = 0.10;

struct TrainChoice {
  TrainStrategy strategy = TrainStrategy::kDdp;
  bool fits = true;
  std::string reason{};  // "it fits (1.2 GiB of 8.0 GiB) and ..."
};

/// The fastest that fits, with weight on simplicity: earlier ones of kTrainStrategies stay unless a later one is faster
/// by kWorthDividing. Where none fits, the one that lacks least. `candidates`: at least one, in that order.
TrainChoice choose_training(std::span<const TrainCandidate> candidates);

}  // namespace butterfly
