#include "butterfly/trainer.h"

#include <algorithm>

#include "butterfly/api/convert.h"
#include "butterfly/plan/cost/training_cost.h"
#include "butterfly/train/config/run_keys.h"
#include "butterfly/train/ranks/ranks.h"
#include "butterfly/train/run/run_log.h"
#include "butterfly/wire/enrolment/node_access.h"

namespace butterfly {

struct Trainer::State {
  TrainerOptions options;
  RunConfig config;
};

namespace {

Status set(RunConfig& config, const std::string& name, const std::string& value) {
  const auto named = [&](const RunKey& key) { return key.name == name || (!key.alias.empty() && key.alias == name); };
  const auto found = std::ranges::find_if(run_keys(), named);
  if (found == run_keys().end()) {
    return make_error(ErrorCode::kInvalidArgument, "a training run has no setting '{}' to be '{}'", name, value);
  }
  return set_from_text(config, *found, value);
}

/// The caller's functions and the run's own log hear the same.
TrainObserver observer_of(const TrainerOptions& options, RunLog& log) {
  return {.step =
              [&](const StepReport& report, std::int64_t steps) {
                log.step(report);
                if (!options.step) return;
                options.step({.step = report.step + 1,
                              .steps = steps,
                              .loss = report.loss,
                              .gradient_norm = report.gradient_norm,
                              .learning_rate = report.rate,
                              .tokens = report.tokens,
                              .step_s = report.phases.total_s});
              },
          .evaluated =
              [&](std::int64_t step, double loss) {
                log.evaluated(step, loss);
                if (options.evaluated) options.evaluated(step, loss);
              },
          .sampled = [&](std::int64_t step, const std::string& text) { log.sampled(step, text); },
          .saved =
              [&](std::int64_t step, const std::string& path) {
                log.saved(step, path);
                if (options.saved) options.saved(step, path);
              },
          .note =
              [&](const std::string& message) {
                log.note(message);
                if (options.note) options.note(message);
              }};
}

TrainingResult summarise(const TrainResult& result) {
  const RunSummary& summary = result.summary;
  return {.steps = result.steps_done,
          .final_loss = summary.final_loss,
          .validation_loss = result.validation_loss,
          .tokens_per_s = summary.tokens_per_sec,
          .step_s = summary.avg_step_time,
          .mfu = summary.mfu,
          .peak_memory_bytes = summary.peak_memory_allocated,
          .weights_hash = result.weights_hash,
          .valid = result.verdict.valid,
          .reasons = result.verdict.reasons,
          .json = to_json(result)};
}

}  // namespace

Trainer::Trainer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

Result<Trainer> Trainer::create(const TrainerOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  if (!options.run_file.empty()) {
    BF_ASSIGN_OR_RETURN(state->config, read_run_config(options.run_file));
  }
  for (const auto& [name, value] : options.settings) BF_TRY(set(state->config, name, value));
  BF_TRY(validate(state->config));
  return Trainer(std::move(state));
}

Result<TrainingResult> Trainer::run(std::stop_token stop) {
  const RunConfig& config = state_->config;
  RanksOptions ranks{.member_timeout = state_->options.member_timeout};
  if (!config.parallel.workers.empty()) {
    BF_ASSIGN_OR_RETURN(ranks.access, node_access({.credentials = state_->options.credentials,
                                                   .any_address = state_->options.any_address}));
  }
  BF_ASSIGN_OR_RETURN(const std::unique_ptr<RunLog> log, RunLog::open(config));
  BF_ASSIGN_OR_RETURN(const TrainResult result,
                      train_with_ranks(config, observer_of(state_->options, *log), stop, ranks));
  log->finished(result);
  BF_TRY(log->status());
  return summarise(result);
}

std::string Trainer::settings() const {
  return to_toml(state_->config);
}

Result<CommunicationEstimate> estimate_communication(const std::string& strategy, int world_size,
                                                     std::uint64_t parameters) {
  BF_ASSIGN_OR_RETURN(const TrainStrategy parsed, parse_train_strategy(strategy));
  BF_ASSIGN_OR_RETURN(const TrainCommunication moved, train_communication(parsed, world_size, parameters));
  return CommunicationEstimate{.bytes_per_step = moved.bytes_sent_per_node, .messages_per_step = moved.messages};
}

}  // namespace butterfly
