// butterfly bench model: tokens per second of prefill and decode, median and spread, per number of threads.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/base/units.h"
#include "butterfly/infer/request/text_batches.h"
#include "butterfly/infer/scheduler/schedule.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"
#include "shared/predicted.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

constexpr int kRowsMax = 512;  // of one step

struct BenchCommand {
  InferenceFlags flags;
  int prefill = 512;
  int decode = 128;
  int rounds = 3;
  int sequences = 1;
  bool json = false;
};

struct BenchResult {
  int threads = 0;
  std::vector<double> prefill_tokens_per_s;
  std::vector<double> decode_tokens_per_s;
  double weight_gb_per_s = 0;  // weight bytes read per second of decode, median
  double gflops = 0;           // of prefill, median
  std::optional<Speeds> predicted;
  ExchangeTimes exchange;     // of the first tensor group
  std::vector<double> run_s;  // of each round
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

Result<BenchResult> bench_threads(const BenchCommand& command, InferenceConfig settings, int threads) {
  BenchResult result;
  result.threads = settings.deployment.compute.threads = threads;
  settings.deployment.plan.sequences = command.sequences;
  const auto reserve_what_it_needs = [&](const ModelConfig& config) -> Status {
    const int longest = config.encodes_only() ? command.prefill : command.prefill + command.decode + 1;
    if (longest > config.context) {
      return make_error(ErrorCode::kInvalidArgument, "prefill {} and decode {} do not fit into the context of {}",
                        command.prefill, command.decode, config.context);
    }
    settings.deployment.plan.context = longest;
    return {};
  };
  BF_ASSIGN_OR_RETURN(OpenModel model, open_model(settings, reserve_what_it_needs));
  const ModelConfig& config = model.checkpoint.config;
  BenchCommand warm = command;
  warm.prefill = std::min(command.prefill, 64);
  warm.decode = std::min(command.decode, 4);
  BenchResult ignored;
  BF_TRY(run_round(model.deployment->pipeline(), warm, config, ignored));
  for (int round = 0; round < command.rounds; ++round) {
    BF_TRY(run_round(model.deployment->pipeline(), command, config, result));
  }
  for (const NodeReport& node : model.deployment->nodes()) {
    if (!result.exchange.measured()) result.exchange = node.exchange_times;
  }
  if (config.encodes_only()) return result;
  result.predicted = predicted_speeds(
      *model.deployment,
      {.sequences = command.sequences, .prompt = command.prefill, .generated = command.decode, .chunk = kRowsMax});
  return result;
}

void print(const BenchCommand& command, const BenchResult& r) {
  const auto spread = [](const std::vector<double>& v) {
    return fmt::format("{:8.2f} tokens/s ({:.2f} to {:.2f})", median(v), *std::min_element(v.begin(), v.end()),
                       *std::max_element(v.begin(), v.end()));
  };
  if (r.decode_tokens_per_s.empty()) {
    std::printf("%d thread%s  texts of %d: %s, %.0f GFLOP/s\n", r.threads, r.threads == 1 ? " " : "s", command.prefill,
                spread(r.prefill_tokens_per_s).c_str(), r.gflops);
    return;
  }
  std::printf("%d thread%s  prefill %d: %s, %.0f GFLOP/s | decode %d: %s, %.1f GB/s of weights\n", r.threads,
              r.threads == 1 ? " " : "s", command.prefill, spread(r.prefill_tokens_per_s).c_str(), r.gflops,
              command.decode, spread(r.decode_tokens_per_s).c_str(), r.weight_gb_per_s);
  if (r.predicted) std::printf("%s\n", compare(*r.predicted, r.measured()).c_str());
}

InferenceConfig quiet_config() {
  InferenceConfig config;
  config.quiet = true;
  return config;
}

Status run(const BenchCommand& command) {
  BF_ASSIGN_OR_RETURN(const InferenceConfig config, read_config(command.flags, quiet_config()));
  const DeploymentConfig& deployment = config.deployment;
  std::vector<int> thread_counts;
  if (deployment.compute.threads > 0 || !deployment.membership.workers.empty() || deployment.nodes > 1) {
    thread_counts.push_back(std::max(deployment.compute.threads, 1));
  } else {
    for (int t = 1; t <= usable_threads(); t *= 2) thread_counts.push_back(t);
  }
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  nlohmann::ordered_json j;
  j["model"] = config.model;
  j["isa"] = to_string(isa);
  j["sequences"] = command.sequences;
  for (const int threads : thread_counts) {
    BF_ASSIGN_OR_RETURN(const BenchResult result, bench_threads(command, config, threads));
    if (!command.json) print(command, result);
    nlohmann::ordered_json one{{"threads", result.threads},
                               {"prefill_tokens", command.prefill},
                               {"decode_tokens", command.decode},
                               {"prefill_tokens_per_s", result.prefill_tokens_per_s},
                               {"decode_tokens_per_s", result.decode_tokens_per_s},
                               {"prefill_gflops", result.gflops},
                               {"decode_weight_gb_per_s", result.weight_gb_per_s}};
    if (result.exchange.measured()) {
      one["exchange"] = {{"one_row_s", result.exchange.one_row_s},
                         {"rows", result.exchange.many_rows},
                         {"rows_s", result.exchange.many_rows_s}};
    }
    if (result.predicted) one["predicted"] = to_json(*result.predicted, result.measured());
    j["results"].push_back(std::move(one));
  }
  if (command.json) print_json(j);
  return {};
}

}  // namespace

void add_bench_model(Command bench, Action& action) {
  auto sub = bench.add_subcommand(
      "model", "Tokens per second of prefill and decode, or of an encoder's texts, for 1, 2, 4, ... threads");
  auto command = std::make_shared<BenchCommand>();
  add_inference_flags(sub, command->flags, quiet_config());
  sub.add_option("--prefill", command->prefill, "Prompt tokens").in_range(1, 1 << 20).show_default();
  sub.add_option("--decode", command->decode, "Tokens decoded one by one").in_range(1, 1 << 20).show_default();
  sub.add_option("--rounds", command->rounds, "Measured rounds, after a short one that is not")
      .in_range(1, 1000)
      .show_default();
  sub.add_option("--sequences", command->sequences, "Texts side by side").in_range(1, 256).show_default();
  finish_bench(sub, action, command, &run);
}

}  // namespace butterfly::app
