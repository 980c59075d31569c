// butterfly train: learns a model from text. The settings are one table of keys (train/config/run_keys.h): of the file,
// and of the flags.
#include "train/train.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "butterfly/base/json.h"
#include "butterfly/machine/usage/cpu_shortage.h"
#include "butterfly/train/config/run_keys.h"
#include "butterfly/train/ranks/ranks.h"
#include "butterfly/wire/collective/outcome.h"
#include "commands.h"
#include "options/key_flags.h"
#include "shared/access.h"
#include "train/train_rendezvous.h"
#include "train/train_restart.h"

namespace butterfly::app {
namespace {

struct TrainCommand {
  std::string file;
  KeyFlags<RunConfig> flags;
  bool find_batch = false;
  bool json = false;
  AccessOptions access;
};

/// With other defaults than usual where `standard` has them.
Result<RunConfig> config_of(const TrainCommand& command, const RunConfig& standard = {}) {
  RunConfig config = standard;
  if (!command.file.empty()) {
    BF_ASSIGN_OR_RETURN(config, read_run_config(command.file, standard));
  }
  BF_TRY(command.flags.apply(config));
  return config;
}

/// What neither file nor flags decide: there another default shows.
Result<FitOpen> open_choices(const TrainCommand& command, const RunConfig& config) {
  RunConfig other;
  other.parallel.strategy = ParallelStrategy::kZero3;
  other.recompute = Recompute::kBlock;
  BF_ASSIGN_OR_RETURN(const RunConfig with_other, config_of(command, other));
  return FitOpen{.strategy = config.parallel.strategy == ParallelStrategy::kAuto ||
                             config.parallel.strategy != with_other.parallel.strategy,
                 .recompute = config.recompute != with_other.recompute};
}

/// What the cost model chose, and from what.
struct Choice {
  std::uint64_t memory_bytes = 0;      // that a rank is predicted to take; 0: nobody asked
  std::optional<PlanCluster> workers;  // this machine and they, where they were asked
};

/// Chooses what the run leaves to the cost model.
Result<Choice> choose(const TrainCommand& command, RunConfig& config, const NodeAccess& access) {
  Choice choice;
  if (config.memory.empty() && config.parallel.strategy != ParallelStrategy::kAuto) return choice;
  BF_ASSIGN_OR_RETURN(const PlanCluster nodes, nodes_of_ranks(config, access));
  if (!config.parallel.workers.empty()) choice.workers = nodes;
  if (!config.memory.empty()) {
    BF_ASSIGN_OR_RETURN(const FitOpen open, open_choices(command, config));
    BF_ASSIGN_OR_RETURN(choice.memory_bytes, fit_to_memory(config, open, nodes));
    return choice;
  }
  BF_ASSIGN_OR_RETURN(const std::string why, choose_strategy(config, nodes));
  if (config.log != LogLevel::kSilent) std::fprintf(stderr, "strategy        %s\n", why.c_str());
  return choice;
}

int exit_code(const TrainResult& result, const RunConfig& config) {
  if (result.steps_done < config.steps) return kExitInterrupted;
  return result.verdict.valid ? kExitOk : kExitInvalid;
}

void print_json(const TrainResult& result, const TrainAside& aside) {
  auto json = parse_ordered_json(to_json(result));
  json["display_s"] = aside.display_s;
  json["stolen_cpu_share"] = aside.stolen;
  if (aside.memory_bytes > 0) json["predicted_memory_bytes"] = aside.memory_bytes;
  if (aside.step) {
    json["predicted_step_s"] = aside.step->predicted;
    json["predicted_step_interval"] = {aside.step->interval.low, aside.step->interval.high};
    json["predicted_step_within"] = aside.step->within();
    json["predicted_step_inconclusive"] = aside.step->inconclusive();
  }
  std::printf("%s\n", dump_json(json).c_str());
}

/// What is an error on one rank is an error on all.
Status agreed(MpiWorld* world, const Status& mine) {
  return world == nullptr ? mine : agree_on_outcome(world->collectives(), mine);
}

/// choose(); ranks of MPI take what the first one chooses.
Result<Choice> choose_once(const TrainCommand& command, RunConfig& config, const NodeAccess& access, MpiWorld* world) {
  Choice choice;
  const auto choosing = [&]() -> Status {
    BF_ASSIGN_OR_RETURN(choice, choose(command, config, access));
    return {};
  };
  BF_TRY(agreed(world, world == nullptr || world->rank() == 0 ? choosing() : Status{}));
  if (world == nullptr) return choice;
  std::array<int, 3> chosen{static_cast<int>(config.parallel.strategy), config.micro_batch,
                            static_cast<int>(config.recompute)};
  BF_TRY(world->collectives().broadcast(std::as_writable_bytes(std::span(chosen)), 0));
  config = with_choice(config, {.strategy = static_cast<ParallelStrategy>(chosen[0]),
                                .micro_batch = chosen[1],
                                .recompute = static_cast<Recompute>(chosen[2])});
  return choice;
}

void report(const TrainCommand& command, const TrainResult& result, const RunConfig& config,
            const std::optional<PlanCluster>& workers, TrainAside aside, double disturbed) {
  if (const auto predicted_s = predicted_step_s(config, workers, result.summary.peak_gflops);
      predicted_s && result.summary.avg_step_time > 0.0) {
    const char* where = workers ? "train workers " : "train ";
    aside.step = judge_time(where + std::string(to_string(config.precision)), *predicted_s,
                            result.summary.avg_step_time, disturbed);
  }
  if (config.log != LogLevel::kSilent) std::fprintf(stderr, "%s", describe(result, config, aside).c_str());
  if (command.json) print_json(result, aside);
}

/// Ranks wait for what those in other processes of this machine lack, too.
double shortage_of_ranks(const CpuShortage& shortage, const ParallelConfig& ranks) {
  const bool beside_us = (ranks.engine != RankEngine::kInproc && ranks_here(ranks) > 1) ||
                         std::ranges::any_of(ranks.workers, [](const auto& at) { return at.starts_with("127."); });
  return beside_us ? shortage.share_of_machine() : shortage.share();
}

/// On one rank of `world`, or on all where it is null.
Result<int> run_ranks(const TrainCommand& command, RunConfig config, RanksOptions options, MpiWorld* world) {
  const auto settings = [&]() -> Status {
    if (world != nullptr) BF_TRY(take_place(*world, command.access, config));
    return validate(config);
  };
  BF_TRY(agreed(world, settings()));
  BF_ASSIGN_OR_RETURN(const Choice choice, choose_once(command, config, options.access, world));
  auto opened = RunLog::open(config);
  BF_TRY(agreed(world, opened ? Status{} : tl::unexpected(opened.error())));
  RunLog& log = **opened;
  TrainDisplay display(config, log);
  if (world != nullptr) options.started = &world->collectives();
  const StolenTime training;
  const CpuShortage shortage;
  std::stop_source stop;
  const auto end = [&stop] { stop.request_stop(); };
  const std::stop_callback on_interrupt(interrupted(), end), on_warning(warned(), end);
  const Result<TrainResult> result = train_with_ranks(config, display.observer(), stop.get_token(), options);
  display.end();
  if (!result) return tl::unexpected(result.error());
  if (world != nullptr && world->rank() > 0) return exit_code(*result, config);
  log.finished(*result);
  const TrainAside aside{.display_s = display.spent_s(),
                         .memory_bytes = choice.memory_bytes,
                         .stolen = training.share(),
                         .disturbance = training.sentence()};
  report(command, *result, config, choice.workers, aside, shortage_of_ranks(shortage, config.parallel));
  BF_TRY(log.status());
  return exit_code(*result, config);
}

Result<int> run_train(const TrainCommand& command) {
  BF_ASSIGN_OR_RETURN(RunConfig config, config_of(command));
  RanksOptions options;
  if (config.parallel.engine == RankEngine::kMpi && !command.find_batch) {
    return train_on_mpi([&](MpiWorld& world) { return run_ranks(command, config, options, &world); });
  }
  BF_TRY(validate(config));
  if (!command.find_batch) {
    BF_ASSIGN_OR_RETURN(const std::optional<int> ended, lead_again(config));
    if (ended) return *ended;
  }
  if (has_ranks_elsewhere(config.parallel)) {
    BF_ASSIGN_OR_RETURN(options.access, open_access(command.access));
  }
  std::unique_ptr<Listener> joins;
  if (const std::string& meeting = config.parallel.rendezvous; !meeting.empty()) {
    BF_ASSIGN_OR_RETURN(joins, listen_at_rendezvous(meeting, options.access));
    if (joins == nullptr) return take_part_at_rendezvous(config, options.access);
    options.listen_for_joins = [&joins]() -> Result<std::unique_ptr<Listener>> { return std::move(joins); };
  }
  if (command.find_batch) {
    BF_TRY(find_batch_of_run(config, command.json ? ResultForm::kJson : ResultForm::kText));
    return kExitOk;
  }
  return run_ranks(command, std::move(config), std::move(options), nullptr);
}

}  // namespace

void add_train(Command app, Action& action) {
  auto sub = app.add_subcommand("train", "Train a model on text, on one or several ranks, here or on workers");
  auto command = std::make_shared<TrainCommand>();
  add_config_option(sub, command->file, "docs/formats/run.md");
  sub.add_flag("--find-batch", command->find_batch,
               "Do not train: double the micro-batch until memory ends, and say which fit and how fast they are");
  sub.add_flag("--json", command->json, "The result as one JSON object on stdout");
  command->flags.add(sub, run_keys());
  add_access_options(sub, command->access);
  sub.footer(
      "Every key of the file is a flag, and the other way round. Examples:\n"
      "  butterfly tokenize --train plays.txt --vocab 2048 --out tokenizer.json\n"
      "  butterfly train --model tinytransformer-tiny --data plays.txt --tokenizer tokenizer.json --steps 500 --out "
      "small.gguf\n"
      "  butterfly generate -m small.gguf -p 'ROMEO:' -n 50\n"
      "  butterfly train -c run.toml --ranks 2 --deterministic --checkpoints saved --save-every 100\n"
      "  butterfly train -c run.toml --resume saved --checkpoints saved\n"
      "  butterfly train -c run.toml --ranks 4 --engine tcp --checkpoints saved --save-every 50 --max-restarts 3   "
      "(rank 0 may "
      "die, too)\n"
      "  butterfly train -c run.toml --ranks 4 --engine tcp --parallel zero3   (parts of the state; pipeline: layers; "
      "auto: as it fits)\n"
      "  butterfly train -c run.toml --ranks 4 --engine tcp --memory 8GiB   (what fits into that for each rank)\n"
      "  mpirun -n 4 butterfly train -c run.toml --engine mpi\n"
      "  butterfly train -c run.toml --workers node-b:7000,node-c:7000   (on each: butterfly worker --listen "
      "HOST:7000)\n"
      "  butterfly train -c run.toml --join-at 10.0.0.1:7300   (butterfly worker --join 10.0.0.1:7300 takes a share at "
      "any time)\n"
      "  butterfly train -c run.toml --rendezvous node-a:7300 --nnodes 2:8   (the same command on every machine)\n"
      "  butterfly train --model gpt2-124m --data synthetic:markov --seq 256 --find-batch\n"
      "Ctrl-C, SIGTERM and SIGUSR1 save (where there is a checkpoint directory) and end the run. A run audits itself: "
      "parameters that got no "
      "gradient\n"
      "or did not move, a loss that learned nothing, utilisation over 100 % or bytes that do not add up make it "
      "INVALID.\n"
      "Exit codes: 0 done and valid, 2 bad input or a failed operation, 3 the run ended and is INVALID, 130 "
      "interrupted.");
  run_later(sub, action, [command] { return run_train(*command); });
}

}  // namespace butterfly::app
