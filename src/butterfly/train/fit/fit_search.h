// Which strategy, micro-batch and recomputation fit into a memory: from the fastest on. Plain functions; what a choice
// costs is the caller's business.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/plan/cost/training_cost.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

/// Strategies that the cost model knows, from the one that divides least on. A strategy that it learns is a row here.
struct PlannedStrategy {
  ParallelStrategy run = ParallelStrategy::kDdp;
  TrainStrategy plan = TrainStrategy::kDdp;
};
inline constexpr std::array kPlannedStrategies{
    PlannedStrategy{ParallelStrategy::kDdp, TrainStrategy::kDdp},
    PlannedStrategy{ParallelStrategy::kZero1, TrainStrategy::kZero1},
    PlannedStrategy{ParallelStrategy::kZero2, TrainStrategy::kShardGradOp},
    PlannedStrategy{ParallelStrategy::kZero3, TrainStrategy::kFullShard},
    PlannedStrategy{ParallelStrategy::kPipeline, TrainStrategy::kPipeline},
};
/// As the cost model sees it: groups of kHybrid as one.
TrainStrategy planned_as(ParallelStrategy strategy);
ParallelStrategy run_as(TrainStrategy strategy);

/// What a search may choose.
struct FitChoice {
  ParallelStrategy strategy = ParallelStrategy::kDdp;
  int micro_batch = 1;
  Recompute recompute = Recompute::kNone;
};

/// What the user left open.
struct FitOpen {
  bool strategy = false;
  bool recompute = false;
};

/// Every choice that `config` leaves open and that can run: the simplest strategies first, without recomputation first,
/// the largest micro-batches first. A micro-batch of 0 is open.
std::vector<FitChoice> fit_choices(const RunConfig& config, const FitOpen& open);
/// `config` with the choice.
RunConfig with_choice(RunConfig config, const FitChoice& choice);
/// "zero3, micro-batch 2, recompute block"
std::string to_string(const FitChoice& choice);

struct FitCosts {
  std::function<Result<double>(const FitChoice&)> step_s{};
  std::function<Result<std::uint64_t>(const FitChoice&)> memory_bytes{};  // of the fullest rank, at its peak
};

struct FitTrial {
  FitChoice choice{};
  std::uint64_t memory_bytes = 0;
  double step_s = 0.0;
  bool fits = false;
};

/// The first that fits, by step time; of equally fast ones the earlier in `choices`. `tried` is told of each that is
/// looked at. Errors: kNoMemory naming the least that was found; those of `costs`.
Result<FitTrial> find_fit(const std::vector<FitChoice>& choices, std::uint64_t memory_bytes, const FitCosts& costs,
                          const std::function<void(const FitTrial&)>& tried);

}  // namespace butterfly
