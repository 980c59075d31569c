// butterfly plan: which node would run which layers, and what that would take. Nothing is loaded and nothing runs.
#include "plan/plan.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "plan/plan_training.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "butterfly/base/read_file.h"
#include "butterfly/plan/description/cluster_file.h"
#include "butterfly/plan/partition/strategy.h"
#include "butterfly/plan/simulation/simulated_plan.h"
#include "commands.h"
#include "shared/asked_cluster.h"

namespace butterfly::app {
namespace {

constexpr int kDefaultContext = 4096;
constexpr int kDefaultTrainBatch = 8;  // as butterfly train has it

struct PlanCommand {
  std::string model, type, kv_type = "auto";
  std::string cluster;
  std::vector<std::string> workers;
  AccessOptions access;
  std::string split = "auto", custom, goal = "latency";
  int batch = 0, context = 0, prompt = 0, chunk = 512;
  bool train = false;
  WorldOptions world;
  bool json = false;
  std::string svg;
  bool simulate = false;
  SimulationOptions simulation;
};

/// A training step has at least one sequence for each of the ranks that were asked for.
int batch_of(const PlanCommand& command) {
  if (command.batch > 0) return command.batch;
  return command.train ? std::max(kDefaultTrainBatch, command.world.size) : 1;
}

Result<DType> parse_type(const std::string& option, const std::string& name) {
  const auto type = parse_dtype(name);
  if (type && *type != DType::kI32) return *type;
  std::vector<std::string_view> names;
  for (DType known : kAllDTypes) {
    if (known != DType::kI32) names.push_back(to_string(known));
  }
  return make_error(ErrorCode::kInvalidArgument, "{} is \"{}\", expected one of {}", option, name,
                    fmt::join(names, ", "));
}

/// A file or directory where there is one of that name, else a named shape.
Result<ModelConfig> read_model(const PlanCommand& command) {
  ModelConfig config;
  std::error_code ignored;
  if (std::filesystem::exists(command.model, ignored)) {
    BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                        open_checkpoint(command.model, {.weights_required = false, .vocabulary_required = false}));
    config = checkpoint.config;
    if (config.name.empty()) config.name = command.model;
  } else {
    const auto named = named_config(command.model);
    if (!named) {
      return make_error(ErrorCode::kNotFound, "\"{}\" is no file, no directory and no named shape; there are {}",
                        command.model, fmt::join(named_configs(), ", "));
    }
    config = *named;
    config.weight_type = DType::kF16;  // as such models are published
  }
  if (!command.type.empty()) {
    BF_ASSIGN_OR_RETURN(config.weight_type, parse_type("--type", command.type));
  }
  return config;
}

Result<PlanCluster> read_cluster(const PlanCommand& command) {
  if (command.cluster.empty() == command.workers.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "a plan needs --cluster FILE or --workers HOST:PORT,...{}, got {}",
                      command.train ? " or --world-size N" : "", command.cluster.empty() ? "neither" : "both");
  }
  if (!command.cluster.empty()) return read_cluster_file(command.cluster);
  BF_ASSIGN_OR_RETURN(const NodeAccess access, open_access(command.access));
  return ask_cluster(command.workers, access);
}

Result<PlanOptions> plan_options(const PlanCommand& command, const ModelConfig& config) {
  PlanOptions options{
      .strategy = command.split, .sequences = batch_of(command), .prompt = command.prompt, .chunk = command.chunk};
  options.context = command.context > 0 ? command.context : std::min(config.context, kDefaultContext);
  options.kv_type = config.weight_type == DType::kF32 ? DType::kF32 : DType::kF16;
  if (command.kv_type != "auto") {
    BF_ASSIGN_OR_RETURN(options.kv_type, parse_type("--kv-type", command.kv_type));
  }
  BF_ASSIGN_OR_RETURN(options.goal, parse_plan_goal(command.goal));
  if (command.split == "custom" && command.custom.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "--split custom needs --custom FILE, got none");
  }
  if (!command.custom.empty()) {
    BF_ASSIGN_OR_RETURN(const std::string text, read_file(command.custom, kAnySize));
    auto custom = parse_custom_plan(text);
    if (!custom) {
      return make_error(custom.error().code, "{}: {}", command.custom, custom.error().message);
    }
    options.custom = std::move(*custom);
  }
  return options;
}

Status add_simulation(const PlanCommand& command, Planned& planned) {
  BF_ASSIGN_OR_RETURN(const PredictionInput input, prediction_input(planned.config, planned.cluster, planned.options));
  SimulationOptions& options = planned.simulation_options;
  options = command.simulation;
  options.sequences_max = batch_of(command);
  options.prefill_chunk = command.chunk;
  options.prompt = static_cast<int>(input.load.prompt);
  if (options.generated > planned.options.context - options.prompt) {
    return make_error(ErrorCode::kInvalidArgument, "a prompt of {} and {} generated tokens exceed the context of {}",
                      options.prompt, options.generated, planned.options.context);
  }
  BF_ASSIGN_OR_RETURN(planned.simulation, simulate(simulated(input, planned.plan), options));
  return {};
}

/// A simulation is about one plan; otherwise all strategies are tried, and the one that was asked for is among them.
Status add_plans(const PlanCommand& command, Planned& planned) {
  if (command.simulate) {
    BF_ASSIGN_OR_RETURN(planned.plan, make_plan(planned.config, planned.cluster, planned.options));
    return add_simulation(command, planned);
  }
  BF_ASSIGN_OR_RETURN(const Strategy* wanted, find_strategy(planned.options.strategy));
  BF_ASSIGN_OR_RETURN(planned.all, compare_plans(planned.config, planned.cluster, planned.options));
  for (const ComparedPlan& one : planned.all) {
    if (one.strategy == wanted->name) {
      BF_ASSIGN_OR_RETURN(planned.plan, Result<Plan>(one.plan));
    }
  }
  return {};
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return make_error(ErrorCode::kIo, "{}: {} bytes cannot be written", path, text.size());
  return {};
}

Result<int> run_plan(const PlanCommand& command) {
  Planned planned;
  BF_ASSIGN_OR_RETURN(planned.config, read_model(command));
  if (command.world.size > 0) {
    BF_TRY(set_world(command.world, planned));
  } else {
    BF_ASSIGN_OR_RETURN(planned.cluster, read_cluster(command));
  }
  BF_ASSIGN_OR_RETURN(planned.options, plan_options(command, planned.config));
  if (command.train) {
    BF_TRY(plan_training(batch_of(command), command.context, command.world, planned));
  } else {
    BF_TRY(add_plans(command, planned));
  }
  if (!command.svg.empty()) BF_TRY(write_file(command.svg, planned.svg()));
  std::printf("%s", (command.json ? planned.json() : planned.text()).c_str());
  return kExitOk;
}

/// Returns those that say which nodes there are.
std::vector<Option> add_model_options(Command sub, PlanCommand& command) {
  sub.add_option("-m,--model", command.model,
                 fmt::format("GGUF file, Hugging Face directory (config.json is enough), or a shape: {}",
                             fmt::join(named_configs(), ", ")))
      .required();
  sub.add_option("--type", command.type, "Type of the weights: f16, q8_0, q4_k and so on [the file's; f16 of shapes]");
  sub.add_option("--kv-type", command.kv_type,
                 "Keys and values are cached as f32, f16, q8_0, or auto: f32 for f32 weights, else f16")
      .one_of({"auto", "f32", "f16", "q8_0"})
      .show_default();
  auto cluster =
      sub.add_option("--cluster", command.cluster, "Description of the nodes and links (docs/formats/cluster.md)");
  auto workers = sub.add_option("--workers", command.workers,
                                "Ask running workers instead: HOST:PORT,...; their links are measured")
                     .comma_separated();
  add_access_options(sub, command.access);
  return {cluster, workers};
}

void add_split_options(Command sub, PlanCommand& command) {
  std::vector<std::string> known;
  for (const Strategy& strategy : strategies())
    known.push_back(fmt::format("{} ({})", strategy.name, strategy.summary));
  sub.add_option("--split", command.split, fmt::format("How to share out: {}", fmt::join(known, "; "))).show_default();
  sub.add_option("--custom", command.custom,
                 "For --split custom: a file with lines \"NODE FIRST-LAST [slices FIRST-LAST] [experts FIRST-LAST]\"");
  sub.add_option("--goal", command.goal, "What is best: latency of one request, throughput of all, or least memory")
      .one_of({"latency", "throughput", "memory"})
      .show_default();
  sub.add_option("--batch", command.batch,
                 fmt::format("Sequences at once [1]; of a training step, over all nodes [{}, or one for each rank]",
                             kDefaultTrainBatch))
      .in_range(1, 1 << 20);
  sub.add_option(
         "--context", command.context,
         fmt::format("Positions to reserve for each sequence [the model's, at most {}]; with --train, tokens of "
                     "each sequence [the model's]",
                     kDefaultContext))
      .in_range(1, 1 << 24);
  sub.add_option("--prompt", command.prompt, "Tokens before the first answer [half the context, at most 512]")
      .in_range(1, 1 << 24);
  sub.add_option("--chunk", command.chunk, "Prompt tokens in one step").in_range(1, 1 << 20).show_default();
}

/// Returns --simulate.
Option add_simulation_options(Command sub, PlanCommand& command) {
  auto simulate = sub.add_flag("--simulate", command.simulate, "Let requests pass the plan, event by event");
  SimulationOptions& options = command.simulation;
  options.requests = 100;
  options.generated = 64;
  const auto option = [&](const char* name, auto& value, const char* text) {
    sub.add_option(name, value, text).needs(simulate).show_default();
  };
  option("--requests", options.requests, "How many");
  option("--rate", options.rate_per_s, "Arrivals per second, at random times; 0: all at once");
  option("--generate", options.generated, "Tokens that answer each");
  option("--jitter", options.jitter, "Relative deviation of every computation and message");
  option("--fail-every", options.fail_every_s, "Mean seconds between deaths of nodes; 0: none");
  option("--detect", options.detect_s, "Seconds from a death to the next epoch, with the node back");
  option("--seed", options.seed, "Seed of times of arrival, jitter and deaths");
  sub.add_flag("--shared-nic", options.shared_nic, "A node sends one message at a time, over whichever link")
      .needs(simulate);
  return simulate;
}

}  // namespace

void add_plan(Command app, Action& action) {
  auto sub = app.add_subcommand("plan", "Who would run which layers, how fast, and with how much memory");
  auto command = std::make_shared<PlanCommand>();
  const std::vector<Option> nodes = add_model_options(sub, *command);
  add_split_options(sub, *command);
  auto train = sub.add_flag("--train", command->train,
                            "Predict a training step, replicated (ddp) and sharded (zero1, shard_grad_op, full_shard)");
  train.excludes(add_simulation_options(sub, *command));
  auto world_size = add_world_options(sub, command->world, train);
  for (const Option& one : nodes) world_size.excludes(one);
  sub.add_flag("--json", command->json, "One JSON object instead of tables");
  sub.add_option("--svg", command->svg, "Draw the plan into this file, too").excludes(train);
  sub.footer(
      "Nothing is loaded and nothing runs; a model needs only its configuration, a cluster only its description.\n"
      "Examples:\n"
      "  butterfly plan -m llama-3.1-70b --type q4_0 --cluster examples/clusters/mixed-8.toml\n"
      "  butterfly plan -m models/demo.gguf --workers 127.0.0.1:7301,127.0.0.1:7302 --split tensor\n"
      "  butterfly plan -m llama-2-13b --cluster my.toml --goal throughput --batch 16 --svg plan.svg\n"
      "  butterfly plan -m llama-2-7b --cluster my.toml --batch 8 --simulate --requests 1000 --rate 2 --fail-every 60\n"
      "  butterfly plan -m gpt2-124m --cluster my.toml --train --batch 64\n"
      "  butterfly plan -m gpt2-124m --train --world-size 4 --gbit-per-s 10 --memory 16GiB --context 256\n"
      "How to read the answer: docs/planning.md. Exit codes: 0 done, 2 bad input or no plan fits (one sentence says "
      "why).");
  run_later(sub, action, [command] { return run_plan(*command); });
}

}  // namespace butterfly::app
