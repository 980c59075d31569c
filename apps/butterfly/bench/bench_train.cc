// butterfly bench train: steps and tokens per second and utilisation of small transformers that learn, by precision and
// number of ranks in this process.
#include <cstdio>

#include "bench/bench.h"
#include "butterfly/base/json.h"
#include "butterfly/machine/topology.h"
#include "butterfly/machine/usage/stolen_time.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/ranks/ranks.h"

namespace butterfly::app {
namespace {

constexpr int kWarmSteps = 2;  // plan, and touch memory

struct TrainBenchCommand {
  std::vector<std::string> models{"tinytransformer-tiny", "tinytransformer-small"}, precisions{"fp32", "bf16"};
  std::vector<int> ranks;
  int batch = 8;
  int seq = 128;
  int steps = 5;
  bool json = false;
};

struct TrainRow {
  std::string model, precision;
  int ranks = 1, threads = 1;
  std::vector<double> step_s{};
  TrainResult result{};
};

Result<Precision> train_precision(const std::string& name) {
  if (name == "fp32") return Precision::kFloat32;
  if (name == "bf16") return Precision::kBfloat16;
  return make_error(ErrorCode::kInvalidArgument, "--precisions {}: known are fp32 and bf16", name);
}

Status measure_training(const TrainBenchCommand& command, TrainRow& row) {
  RunConfig config;
  config.model = row.model;
  config.data.files = {"synthetic:random"};
  config.data.validation_share = 0.0;
  config.seq = command.seq;
  config.global_batch = command.batch;
  config.steps = kWarmSteps + command.steps;
  BF_ASSIGN_OR_RETURN(config.precision, train_precision(row.precision));
  config.schedule.kind = ScheduleKind::kConstant;
  config.parallel.ranks = row.ranks;
  config.threads = row.threads;
  config.log = LogLevel::kSilent;
  BF_TRY(validate(config));
  const TrainObserver observer{.step = [&](const StepReport& report, std::int64_t) {
    if (report.step >= kWarmSteps) row.step_s.push_back(report.phases.total_s);
  }};
  BF_ASSIGN_OR_RETURN(row.result, train_with_ranks(config, observer, interrupted()));
  if (row.result.steps_done < config.steps) return make_error(ErrorCode::kCancelled, "interrupted");
  return {};
}

double tokens_per_s(const TrainBenchCommand& command, const TrainRow& row) {
  return command.batch * command.seq / median(row.step_s);
}

void print_train_head(const TrainBenchCommand& command) {
  std::printf("%d sequences of %d tokens a step, divided among the ranks\n\n", command.batch, command.seq);
  std::printf(
      "| model | precision | ranks x threads | step ms, median (spread) | steps/s | tokens/s | MFU | of GFLOP/s | "
      "exposed communication |\n|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
}

void print_train_row(const TrainBenchCommand& command, const TrainRow& row) {
  const auto [least, most] = std::ranges::minmax(row.step_s);
  const RunSummary& summary = row.result.summary;
  std::printf("| %s | %s | %d x %d | %.1f (%.1f-%.1f) | %.2f | %.0f | %.1f %% | %.0f | %.1f %% |\n", row.model.c_str(),
              row.precision.c_str(), row.ranks, row.threads, median(row.step_s) * 1e3, least * 1e3, most * 1e3,
              1.0 / median(row.step_s), tokens_per_s(command, row), 100 * summary.mfu, summary.peak_gflops,
              100 * summary.phases.communication_exposed_s / summary.avg_step_time);
  std::fflush(stdout);
}

nlohmann::ordered_json train_row_json(const TrainBenchCommand& command, const TrainRow& row) {
  const auto [least, most] = std::ranges::minmax(row.step_s);
  const RunSummary& summary = row.result.summary;
  return {{"model", row.model},
          {"precision", row.precision},
          {"ranks", row.ranks},
          {"threads", row.threads},
          {"batch", command.batch},
          {"seq", command.seq},
          {"step_s", median(row.step_s)},
          {"step_s_least", least},
          {"step_s_most", most},
          {"steps_per_s", 1.0 / median(row.step_s)},
          {"tokens_per_s", tokens_per_s(command, row)},
          {"mfu", summary.mfu},
          {"peak_gflops", summary.peak_gflops},
          {"peak_source", summary.peak_source},
          {"flops_per_token", summary.flops_per_token},
          {"forward_s", summary.phases.forward_s},
          {"backward_s", summary.phases.backward_s},
          {"communication_exposed_s", summary.phases.communication_exposed_s},
          {"optimizer_s", summary.phases.optimizer_s},
          {"load_balance_factor", summary.load_balance_factor},
          {"peak_memory_bytes", summary.peak_memory_allocated}};
}

Status run_training(const TrainBenchCommand& command) {
  const int usable = usable_threads();
  std::vector<int> ranks = command.ranks;
  for (int count = 1; command.ranks.empty() && count <= std::min(usable, command.batch); count *= 2) {
    ranks.push_back(count);
  }
  for (const std::string& precision : command.precisions) BF_TRY(train_precision(precision));
  for (const std::string& model : command.models) BF_TRY(named_config(model));
  const StolenTime stolen;
  auto j = nlohmann::ordered_json::array();
  if (!command.json) print_train_head(command);
  for (const std::string& model : command.models) {
    for (const std::string& precision : command.precisions) {
      for (const int count : ranks) {
        std::fprintf(stderr, "%s, %s, %d rank%s\n", model.c_str(), precision.c_str(), count, count == 1 ? "" : "s");
        TrainRow row{.model = model, .precision = precision, .ranks = count, .threads = std::max(1, usable / count)};
        BF_TRY(measure_training(command, row));
        if (!command.json) print_train_row(command, row);
        j.push_back(train_row_json(command, row));
      }
    }
  }
  if (command.json) print_json({{"stolen_cpu_share", stolen.share()}, {"runs", std::move(j)}});
  if (!command.json && !stolen.sentence().empty()) std::printf("\n%s\n", stolen.sentence().c_str());
  return {};
}

}  // namespace

void add_bench_train(Command bench, Action& action) {
  auto sub = bench.add_subcommand("train", "Steps and tokens per second and utilisation of training, by ranks here");
  const auto command = std::make_shared<TrainBenchCommand>();
  sub.add_option("--models", command->models, "Shapes by name (convert --help lists them)").comma_separated();
  sub.add_option("--precisions", command->precisions, "fp32, bf16").comma_separated();
  sub.add_option("--ranks", command->ranks, "Numbers of ranks, threads of this process [1, 2, 4, ... cores]")
      .comma_separated()
      .in_range(1, 64);
  sub.add_option("--batch", command->batch, "Sequences of a step, over all ranks").in_range(1, 4096).show_default();
  sub.add_option("--seq", command->seq, "Tokens of each").in_range(2, 1 << 16).show_default();
  sub.add_option("--steps", command->steps, "Measured steps, after two that are not")
      .in_range(1, 10'000)
      .show_default();
  sub.footer(
      "Random tokens, forward, backward, clipping and AdamW in each step; the cores are divided among the ranks. MFU "
      "is "
      "of\nrank 0: what the model needs (6 FLOPs per parameter and token, and attention) over the peak measured here, "
      "for fp32\nin registers, for bf16 of matmuls. Beside PyTorch: tools/bench_training.py. Ranks on other machines: "
      "butterfly train --workers.\n"
      "  butterfly bench train --models gpt2-124m --seq 64 --batch 4 --precisions bf16");
  finish_bench(sub, action, command, &run_training);
}

}  // namespace butterfly::app
