#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "butterfly/base/units.h"
#include "butterfly/kernel/inference/dispatch.h"
#include "butterfly/machine/usage/process_usage.h"
#include "butterfly/train/checkpoint/resume.h"
#include "butterfly/train/fit/rank_memory.h"
#include "butterfly/train/gradients/rank_shards.h"
#include "butterfly/train/run/training_peak.h"
#include "train/train.h"

namespace butterfly::app {
namespace {

/// Of connections and small tables, and of each thread its stack and packed operands: what a run has beside its arrays.
constexpr std::uint64_t kAroundARun = std::uint64_t{16} << 20, kAroundAThread = std::uint64_t{8} << 20;

/// What a rank's process takes without a model. Text becomes tokens, of about as many bytes.
std::uint64_t process_bytes(const RunConfig& config) {
  std::uint64_t bytes =
      resident_bytes() + kAroundARun + kAroundAThread * static_cast<std::uint64_t>(threads_of_run(config));
  for (const std::string& file : config.data.files) {
    std::error_code none;
    const auto size = std::filesystem::file_size(file, none);
    if (!none && !file.ends_with(".tokens")) bytes += size;
  }
  return bytes;
}

/// The slowest rank's share, for all.
Result<double> step_s(const ModelConfig& shape, const PlanCluster& cluster, const RunConfig& config) {
  const int ranks = cluster.size(), size = shared_micro_batch(config), total = config.global_batch / size;
  TrainOptions step = planned_step(config, planned_as(config.parallel.strategy));
  // Every stage of a pipeline computes all of them.
  if (step.strategy != TrainStrategy::kPipeline) step.batch = (total + ranks - 1) / ranks * ranks * size;
  BF_ASSIGN_OR_RETURN(const TrainPrediction prediction, predict_training(shape, cluster, step));
  return prediction.step_s;
}

/// A run that goes on computes as it did.
Status keep_saved_choices(RunConfig& config, FitOpen& open) {
  if (config.resume.empty()) return {};
  BF_ASSIGN_OR_RETURN(const SavedRun saved, open_resumed(config));
  BF_ASSIGN_OR_RETURN(const RunConfig before, read_run_config(saved.config_path()));
  if (open.recompute) config.recompute = before.recompute;
  open.recompute = false;
  return {};
}

std::vector<FitChoice> choices_for(const ModelConfig& shape, const RunConfig& config, const FitOpen& open) {
  std::vector<FitChoice> choices = fit_choices(config, open);
  const std::vector<TrainStrategy> divide = strategies_for(shape, ranks_of(config.parallel));
  std::erase_if(choices, [&](const FitChoice& choice) {
    return open.strategy && std::ranges::find(divide, planned_as(choice.strategy)) == divide.end();
  });
  return choices;
}

void say(const FitTrial& trial) {
  std::fprintf(stderr, "  %-50s %10s  %9s a step  %s\n", to_string(trial.choice).c_str(),
               format_bytes(trial.memory_bytes).c_str(), format_seconds(trial.step_s).c_str(),
               trial.fits ? "fits" : "does not fit");
}

}  // namespace

Result<std::uint64_t> fit_to_memory(RunConfig& config, FitOpen open, const PlanCluster& cluster) {
  const std::uint64_t memory_bytes = parse_bytes(config.memory);
  BF_TRY(keep_saved_choices(config, open));
  BF_ASSIGN_OR_RETURN(const ModelConfig shape, shape_of_run(config));
  // Measured now and remembered: at the end of the run there is no memory for it.
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  BF_TRY(measured_training_peak(config.precision, isa, threads_of_run(config)));
  BF_ASSIGN_OR_RETURN(
      const MemoryPlan plan,
      MemoryPlan::create(shape, config, {.threads = threads_of_run(config), .process_bytes = process_bytes(config)}));
  const FitCosts costs{
      .step_s =
          [&](const FitChoice& choice) { return butterfly::app::step_s(shape, cluster, with_choice(config, choice)); },
      .memory_bytes = [&](const FitChoice& choice) -> Result<std::uint64_t> {
        BF_ASSIGN_OR_RETURN(const RankMemory memory, plan.fullest(with_choice(config, choice)));
        return memory.peak_bytes();
      }};
  const bool tells = config.log != LogLevel::kSilent;
  if (tells) {
    std::fprintf(stderr, "%s for each of %d rank%s, predicted, the fastest first:\n",
                 format_bytes(memory_bytes).c_str(), cluster.size(), cluster.size() == 1 ? "" : "s");
  }
  BF_ASSIGN_OR_RETURN(const FitTrial found,
                      find_fit(choices_for(shape, config, open), memory_bytes, costs, [&](const FitTrial& trial) {
                        if (tells) say(trial);
                      }));
  config = with_choice(config, found.choice);
  if (tells && config.parallel.deterministic) {
    std::fprintf(stderr, "  --micro-batch %d gives the same weights elsewhere: they depend on it\n",
                 config.micro_batch);
  }
  return found.memory_bytes;
}

}  // namespace butterfly::app
