#include "butterfly/train/fit/fit_search.h"

#include <algorithm>

#include "butterfly/base/check.h"
#include "butterfly/base/units.h"
#include "butterfly/train/config/run_keys.h"

namespace butterfly {
namespace {

constexpr std::array kRecomputes{Recompute::kNone, Recompute::kSelective, Recompute::kBlock};

/// As its key has it.
std::string name_of(ParallelStrategy strategy) {
  RunConfig config;
  config.parallel.strategy = strategy;
  const auto key = std::ranges::find(run_keys(), "parallel.strategy", &RunKey::name);
  BF_CHECK(key != run_keys().end(), "a key of the strategy");
  return std::get<std::string>(key->get(config));
}

std::vector<ParallelStrategy> strategies_of(const RunConfig& config, const FitOpen& open) {
  if (!open.strategy) return {config.parallel.strategy};
  std::vector<ParallelStrategy> strategies;
  for (const PlannedStrategy& strategy : kPlannedStrategies) strategies.push_back(strategy.run);
  if (ranks_of(config.parallel) == 1) strategies.resize(1);  // nobody to divide anything with
  return strategies;
}

std::vector<int> micro_batches_of(RunConfig config, ParallelStrategy strategy) {
  config.parallel.strategy = strategy;
  if (config.micro_batch > 0) return {config.micro_batch};
  std::vector<int> sizes;
  for (int size = micro_batch_most(config, ranks_of(config.parallel)); size > 0; --size) {
    if (config.global_batch % size == 0) sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

TrainStrategy planned_as(ParallelStrategy strategy) {
  const auto row = std::ranges::find(kPlannedStrategies, strategy, &PlannedStrategy::run);
  return row == kPlannedStrategies.end() ? TrainStrategy::kFullShard : row->plan;
}

ParallelStrategy run_as(TrainStrategy strategy) {
  const auto row = std::ranges::find(kPlannedStrategies, strategy, &PlannedStrategy::plan);
  BF_CHECK(row != kPlannedStrategies.end(), "a strategy that runs");
  return row->run;
}

std::vector<FitChoice> fit_choices(const RunConfig& config, const FitOpen& open) {
  std::vector<FitChoice> choices;
  for (const ParallelStrategy strategy : strategies_of(config, open)) {
    for (const Recompute recompute : kRecomputes) {
      if (!open.recompute && recompute != config.recompute) continue;
      for (const int micro_batch : micro_batches_of(config, strategy)) {
        const FitChoice choice{.strategy = strategy, .micro_batch = micro_batch, .recompute = recompute};
        if (validate(with_choice(config, choice))) choices.push_back(choice);
      }
    }
  }
  return choices;
}

RunConfig with_choice(RunConfig config, const FitChoice& choice) {
  config.parallel.strategy = choice.strategy;
  config.micro_batch = choice.micro_batch;
  config.recompute = choice.recompute;
  return config;
}

std::string to_string(const FitChoice& choice) {
  return fmt::format("{}, micro-batch {}, recompute {}", name_of(choice.strategy), choice.micro_batch,
                     to_string(choice.recompute));
}

Result<FitTrial> find_fit(const std::vector<FitChoice>& choices, std::uint64_t memory_bytes, const FitCosts& costs,
                          const std::function<void(const FitTrial&)>& tried) {
  std::vector<FitTrial> trials;
  for (const FitChoice& choice : choices) {
    BF_ASSIGN_OR_RETURN(const double step_s, costs.step_s(choice));
    trials.push_back({.choice = choice, .step_s = step_s});
  }
  if (trials.empty()) return make_error(ErrorCode::kInvalidArgument, "there is no choice that this run could take");
  std::ranges::stable_sort(trials, {}, &FitTrial::step_s);
  for (FitTrial& trial : trials) {
    BF_ASSIGN_OR_RETURN(trial.memory_bytes, costs.memory_bytes(trial.choice));
    trial.fits = trial.memory_bytes <= memory_bytes;
    if (tried) tried(trial);
    if (trial.fits) return trial;
  }
  const FitTrial& least = *std::ranges::min_element(trials, {}, &FitTrial::memory_bytes);
  return make_error(ErrorCode::kNoMemory, "nothing fits into {} for each rank: the least is {} ({})",
                    format_bytes(memory_bytes), format_bytes(least.memory_bytes), to_string(least.choice));
}

}  // namespace butterfly
