// butterfly bench model: tokens per second of prefill and decode, median and spread, per number of threads or nodes, of
// a model file or of shapes with random weights.
#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/infer/request/text_batches.h"
#include "butterfly/infer/scheduler/schedule.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "butterfly/machine/usage/stolen_time.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/tensor/quantize.h"
#include "butterfly/trace/trace.h"
#include "shared/predicted.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

constexpr int kRowsMax = 512;  // of one step

struct BenchCommand {
  InferenceFlags flags;
  std::vector<std::string> shapes;  // instead of a model file
  std::string type = "q8_0";        // of their weights
  std::vector<int> node_counts;
  int prefill = 512;
  int decode = 128;
  int rounds = 3;
  int sequences = 1;
  bool json = false;
};

struct BenchResult {
  std::string model;
  int threads = 0, nodes = 1;
  std::vector<double> prefill_tokens_per_s;
  std::vector<double> decode_tokens_per_s;
  double weight_gb_per_s = 0;  // weight bytes read per second of decode, median
  double gflops = 0;           // of prefill, median
  std::vector<Judged> predicted;
  ExchangeTimes exchange;     // of the first tensor group
  std::vector<double> run_s;  // of each round
  double load_s = 0;
  Speeds measured() const {
    return {.prefill = median(prefill_tokens_per_s), .decode = median(decode_tokens_per_s), .run_s = median(run_s)};
  }
};

TokenId token_at(int i, int vocab) {
  return TokenId(static_cast<std::int32_t>((std::int64_t{i} * 7919 + 17) % vocab));
}

std::vector<TokenId> prompt_of(const BenchCommand& command, int sequence, int vocab) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < command.prefill; ++i) prompt.push_back(token_at(i + sequence, vocab));
  return prompt;
}

/// Of an encoder: its texts are computed once.
Status run_encoder_round(Pipeline& pipeline, const BenchCommand& command, const ModelConfig& config,
                         BenchResult& result) {
  std::vector<WholeText> texts;
  for (int s = 0; s < command.sequences; ++s) {
    texts.push_back({prompt_of(command, s, config.vocab), command.prefill - 1});
  }
  const std::uint64_t begin = trace::now_ns();
  const std::uint64_t flops = trace::read(trace::Counter::kKernelFlops);
  BF_TRY(run_texts(
      pipeline, texts, {.rows_max = std::max(kRowsMax, command.prefill), .context = config.context},
      [](std::size_t, std::span<const float>) { return Status(); }, interrupted()));
  const double seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  result.gflops = static_cast<double>(trace::read(trace::Counter::kKernelFlops) - flops) / seconds * 1e-9;
  result.prefill_tokens_per_s.push_back(command.prefill * command.sequences / seconds);
  return {};
}

/// One prompt per sequence (for the encoder, where there is one), then `decode` tokens each; any token will do, none is
/// sampled.
Status run_round(Pipeline& pipeline, const BenchCommand& command, const ModelConfig& config, BenchResult& result) {
  if (config.encodes_only()) return run_encoder_round(pipeline, command, config, result);
  const int vocab = config.vocab;
  Schedule schedule({.rows_max = kRowsMax, .depth = pipeline.depth()});
  for (int s = 0; s < command.sequences; ++s) {
    if (config.has_decoder()) {
      schedule.add({TokenId{config.decoder_start}}, prompt_of(command, s, vocab));
    } else {
      schedule.add(prompt_of(command, s, vocab));
    }
  }
  std::vector<int> decoded(static_cast<std::size_t>(command.sequences), 0);
  const std::uint64_t begin = trace::now_ns();
  const std::uint64_t flops = trace::read(trace::Counter::kKernelFlops);
  std::uint64_t prefilled = 0;
  std::uint64_t weight_bytes = 0;
  int waiting = command.sequences;
  double prefill_s = 0;
  while (!schedule.idle()) {
    while (true) {
      BF_ASSIGN_OR_RETURN(std::optional<Step> step, schedule.next_step());
      if (!step) break;
      BF_TRY(pipeline.submit(std::move(*step)));
    }
    BF_ASSIGN_OR_RETURN(const Step step, pipeline.next());
    schedule.completed(step);
    for (const SequenceRun& run : step.batch.runs) {
      if (run.logit_rows() == 0) continue;
      int& count = decoded[static_cast<std::size_t>(run.sequence.value)];
      if (count == 0 && --waiting == 0) {
        prefilled = trace::now_ns();
        prefill_s = static_cast<double>(prefilled - begin) * 1e-9;
        result.gflops = static_cast<double>(trace::read(trace::Counter::kKernelFlops) - flops) / prefill_s * 1e-9;
        weight_bytes = trace::read(trace::Counter::kKernelWeightBytes);
      }
      if (++count > command.decode) {
        schedule.finish(run.sequence);
      } else {
        schedule.append(run.sequence, token_at(count, vocab));
      }
    }
    if (interrupted().stop_requested()) return make_error(ErrorCode::kCancelled, "interrupted");
  }
  const double decode_s = static_cast<double>(trace::now_ns() - prefilled) * 1e-9;
  result.run_s.push_back(prefill_s + decode_s);
  result.prefill_tokens_per_s.push_back(command.prefill * command.sequences / prefill_s);
  result.decode_tokens_per_s.push_back(command.decode * command.sequences / decode_s);
  result.weight_gb_per_s =
      static_cast<double>(trace::read(trace::Counter::kKernelWeightBytes) - weight_bytes) / decode_s * 1e-9;
  return {};
}

/// The model file, or weights made up for a shape.
Result<Checkpoint> checkpoint_of(const BenchCommand& command, const std::string& model) {
  if (command.shapes.empty()) return open_checkpoint(model);
  BF_ASSIGN_OR_RETURN(const ModelConfig shape, named_config(model));
  return random_checkpoint(shape, {.type = *parse_dtype(command.type)});
}

/// `settings` say how many nodes and threads.
Result<BenchResult> bench_once(const BenchCommand& command, InferenceConfig settings) {
  BenchResult result;
  result.model = settings.model;
  result.nodes = settings.deployment.nodes;
  result.threads = settings.deployment.compute.threads;
  settings.deployment.plan.sequences = command.sequences;
  const auto reserve_what_it_needs = [&](const ModelConfig& config) -> Status {
    const int longest = config.encodes_only() ? command.prefill : command.prefill + command.decode + 1;
    if (longest > config.context) {
      return make_error(ErrorCode::kInvalidArgument, "prefill {} and decode {} do not fit into the context of {}, {}",
                        command.prefill, command.decode, settings.model, config.context);
    }
    settings.deployment.plan.context = longest;
    return {};
  };
  BF_ASSIGN_OR_RETURN(Checkpoint checkpoint, checkpoint_of(command, settings.model));
  BF_ASSIGN_OR_RETURN(OpenModel model, deploy_model(std::move(checkpoint), settings, reserve_what_it_needs));
  result.load_s = model.load_s;
  const ModelConfig& config = model.checkpoint.config;
  BenchCommand warm = command;
  warm.decode = std::min(command.decode, 4);
  BenchResult ignored;
  BF_TRY(run_round(model.deployment->pipeline(), warm, config, ignored));
  const CpuShortage shortage;
  for (int round = 0; round < command.rounds; ++round) {
    BF_TRY(run_round(model.deployment->pipeline(), command, config, result));
  }
  for (const NodeReport& node : model.deployment->nodes()) {
    if (!result.exchange.measured()) result.exchange = node.exchange_times;
  }
  if (config.encodes_only()) return result;
  const auto predicted = predicted_speeds(
      *model.deployment,
      {.sequences = command.sequences, .prompt = command.prefill, .generated = command.decode, .chunk = kRowsMax});
  if (predicted) result.predicted = judge(*predicted, result.measured(), shortage_of(shortage, *model.deployment));
  return result;
}

void print(const BenchCommand& command, const BenchResult& r) {
  const auto spread = [](const std::vector<double>& v) {
    return fmt::format("{:8.2f} tokens/s ({:.2f} to {:.2f})", median(v), *std::min_element(v.begin(), v.end()),
                       *std::max_element(v.begin(), v.end()));
  };
  if (command.shapes.empty() && command.node_counts.empty()) {
    std::printf("%d thread%s", r.threads, r.threads == 1 ? " " : "s");
  } else {
    std::printf("%s, %d node%s x %d thread%s", r.model.c_str(), r.nodes, r.nodes == 1 ? " " : "s", r.threads,
                r.threads == 1 ? " " : "s");
  }
  if (r.decode_tokens_per_s.empty()) {
    std::printf("  texts of %d: %s, %.0f GFLOP/s\n", command.prefill, spread(r.prefill_tokens_per_s).c_str(), r.gflops);
    return;
  }
  std::printf("  prefill %d: %s, %.0f GFLOP/s | decode %d: %s, %.1f GB/s of weights\n", command.prefill,
              spread(r.prefill_tokens_per_s).c_str(), r.gflops, command.decode, spread(r.decode_tokens_per_s).c_str(),
              r.weight_gb_per_s);
  if (!r.predicted.empty()) std::printf("%s\n", describe(r.predicted).c_str());
}

InferenceConfig quiet_config() {
  InferenceConfig config;
  config.quiet = true;
  return config;
}

nlohmann::ordered_json to_json(const BenchCommand& command, const BenchResult& result) {
  nlohmann::ordered_json one{{"model", result.model},
                             {"nodes", result.nodes},
                             {"threads", result.threads},
                             {"prefill_tokens", command.prefill},
                             {"decode_tokens", result.decode_tokens_per_s.empty() ? 0 : command.decode},
                             {"prefill_tokens_per_s", result.prefill_tokens_per_s},
                             {"decode_tokens_per_s", result.decode_tokens_per_s},
                             {"prefill_gflops", result.gflops},
                             {"decode_weight_gb_per_s", result.weight_gb_per_s},
                             {"load_s", result.load_s}};
  if (result.exchange.measured()) {
    one["exchange"] = {{"one_row_s", result.exchange.one_row_s},
                       {"rows", result.exchange.many_rows},
                       {"rows_s", result.exchange.many_rows_s}};
  }
  if (!result.predicted.empty()) one["predicted"] = to_json(result.predicted);
  return one;
}

struct NodesAndThreads {
  int nodes = 1, threads = 1;
};

/// With several numbers of nodes the cores are divided among them; else one machine with more and more threads.
std::vector<NodesAndThreads> settings_of(const BenchCommand& command, const DeploymentConfig& deployment) {
  const int given = deployment.compute.threads;
  std::vector<int> nodes = command.node_counts;
  if (nodes.empty() && !command.shapes.empty() && deployment.nodes == 1) nodes = {1, 2, 4, 8};
  std::vector<NodesAndThreads> all;
  for (const int count : nodes) all.push_back({count, given > 0 ? given : std::max(1, usable_threads() / count)});
  if (!all.empty()) return all;
  if (given > 0 || !deployment.membership.workers.empty() || deployment.nodes > 1) {
    return {{deployment.nodes, std::max(given, 1)}};
  }
  for (int t = 1; t <= usable_threads(); t *= 2) all.push_back({1, t});
  return all;
}

/// Shapes take the place of the model that the settings would name.
Result<InferenceConfig> settings_for_shapes(const BenchCommand& command) {
  InferenceConfig standard = quiet_config();
  if (!command.shapes.empty()) standard.model = command.shapes.front();
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_config(command.flags, standard));
  if (command.shapes.empty()) return config;
  if (config.model != standard.model) {
    return make_error(ErrorCode::kInvalidArgument, "--shapes names {} and --model {}: one of them says what runs",
                      command.shapes.front(), config.model);
  }
  const auto type = parse_dtype(command.type);
  if (!type || !can_encode(*type)) {
    return make_error(ErrorCode::kInvalidArgument, "--type {}: known are {}", command.type, encodable_types());
  }
  for (const std::string& shape : command.shapes) BF_TRY(named_config(shape));
  return config;
}

Status run(const BenchCommand& command) {
  BF_ASSIGN_OR_RETURN(InferenceConfig config, settings_for_shapes(command));
  if (!command.node_counts.empty() && (config.deployment.nodes > 1 || !config.deployment.membership.workers.empty())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--node-counts counts nodes of this process; nodes is {}, workers {}", config.deployment.nodes,
                      config.deployment.membership.workers.size());
  }
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  std::vector<std::string> models = command.shapes;
  if (models.empty()) models.push_back(config.model);
  const StolenTime stolen;
  nlohmann::ordered_json j{{"model", models.front()}, {"isa", to_string(isa)}, {"sequences", command.sequences}};
  if (!command.shapes.empty()) j["type"] = command.type;
  const std::vector<NodesAndThreads> settings = settings_of(command, config.deployment);
  for (const std::string& model : models) {
    for (const NodesAndThreads& one : settings) {
      config.model = model;
      config.deployment.nodes = one.nodes;
      config.deployment.compute.threads = one.threads;
      BF_ASSIGN_OR_RETURN(const BenchResult result, bench_once(command, config));
      if (!command.json) print(command, result);
      j["results"].push_back(to_json(command, result));
    }
  }
  j["stolen_cpu_share"] = stolen.share();
  if (command.json) print_json(j);
  return {};
}

}  // namespace

void add_bench_model(Command bench, Action& action) {
  auto sub = bench.add_subcommand(
      "model", "Tokens per second of prefill and decode, or of an encoder's texts, for 1, 2, 4, ... threads or nodes");
  auto command = std::make_shared<BenchCommand>();
  add_inference_flags(sub, command->flags, quiet_config());
  sub.add_option("--shapes", command->shapes,
                 "Shapes with random weights instead of a model: gpt2-124m, bert-base, ...")
      .comma_separated();
  sub.add_option("--type", command->type, "Type of their weights").show_default();
  sub.add_option("--node-counts", command->node_counts,
                 "Numbers of nodes, threads of this process that share its cores [with --shapes 1, 2, 4, 8]")
      .comma_separated()
      .in_range(1, 256);
  sub.add_option("--prefill", command->prefill, "Prompt tokens").in_range(1, 1 << 20).show_default();
  sub.add_option("--decode", command->decode, "Tokens decoded one by one").in_range(1, 1 << 20).show_default();
  sub.add_option("--rounds", command->rounds, "Measured rounds, after one of the prompt that is not")
      .in_range(1, 1000)
      .show_default();
  sub.add_option("--sequences", command->sequences, "Texts side by side").in_range(1, 256).show_default();
  sub.footer(
      "Any token will do: none is sampled. Texts of an encoder are computed once, and have no decode.\n"
      "  butterfly bench model -m model.gguf --prefill 512 --decode 128\n"
      "  butterfly bench model --shapes gpt2-124m,bert-base,t5-small,llama-1.1b --node-counts 1,2,4,8\n"
      "  butterfly bench model --shapes llama-1.1b --type q4_0 --node-counts 2 --split tensor\n"
      "`butterfly convert --help` lists the shapes. Nodes of one machine share its cores and its memory: their numbers "
      "show what\nsplitting costs, not what more machines gain.");
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
