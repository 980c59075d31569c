// butterfly study scale: the same command on more ranks or nodes, and what that is worth.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/base/statistics.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/topology.h"
#include "butterfly/study/advice/remedies.h"
#include "study/scale_point.h"
#include "study/scale_strategies.h"
#include "study/scale_verdict.h"
#include "study/study.h"
#include "study/study_child.h"

namespace butterfly::app {
namespace {

struct ScaleCommand {
  std::string folder = "study-scale";
  std::vector<int> sizes{1, 2, 4, 8};
  int warmup = 3, measure = 50, rounds = 3, batch = 0, extrapolate = 16;
  double latency_us = 0.0, gbit_per_s = 0.0;  // 0: assumed
  std::string memory;
  bool weak = false, json = false;
  std::vector<std::string> words;
};

bool trains(const ScaleCommand& command) {
  return !command.words.empty() && command.words.front() == "train";
}

std::vector<std::string> words_of(const ScaleCommand& command, int size) {
  study::Remedy settings;
  const std::string count = fmt::format("{}", size);
  settings.flags.emplace_back(trains(command) ? "--ranks" : "--nodes", count);
  settings.flags.emplace_back("--threads", "1");
  if (command.weak) settings.flags.emplace_back("--global-batch", fmt::format("{}", command.batch * size));
  return with_flags(command.words, settings);
}

Status run_point(const ScaleCommand& command, int round, ScalePoint& point, std::optional<study::Study>& alone) {
  std::fprintf(stderr, "study: round %d of %d, %d %s\n", round, command.rounds, point.size,
               trains(command) ? "ranks" : "nodes");
  BF_ASSIGN_OR_RETURN(study::Study found,
                      run_round({.words = words_of(command, point.size),
                                 .folder = fmt::format("{}/{}/{}", command.folder, point.size, round),
                                 .warmup = command.warmup,
                                 .measure = command.measure},
                                point));
  if (point.size == 1) alone = std::move(found);
  return {};
}

Status run_strategy(const ScaleCommand& command, int round, StrategyPoint& one) {
  study::Remedy strategy;
  strategy.flags.emplace_back("--parallel", std::string(one.strategy));
  const int ranks = one.point.size;
  std::fprintf(stderr, "study: round %d of %d, %d ranks, %s\n", round, command.rounds, ranks,
               std::string(one.strategy).c_str());
  BF_TRY(run_round({.words = with_flags(words_of(command, ranks), strategy),
                    .folder = fmt::format("{}/{}-{}/{}", command.folder, ranks, one.strategy, round),
                    .warmup = command.warmup,
                    .measure = command.measure},
                   one.point));
  return {};
}

/// Amdahl's law, time(n) / time(1) = s + (1 - s) / n, by least squares over the sizes; of weak scaling Gustafson's,
/// speedup(n) = n - s (n - 1). Only sizes whose members have a CPU each tell something of it.
double serial_share(const ScaleCommand& command, const std::vector<ScalePoint>& points) {
  double above = 0.0, below = 0.0;
  for (const ScalePoint& point : points) {
    if (point.size == 1 || point.shares_cpus()) continue;
    const double n = point.size;
    const double x = command.weak ? n - 1.0 : 1.0 - 1.0 / n;
    const double y = command.weak ? n - point.speedup : 1.0 / point.speedup - 1.0 / n;
    above += x * y;
    below += x * x;
  }
  return below > 0.0 ? std::clamp(above / below, 0.0, 1.0) : -1.0;
}

double speedup_at(bool weak, double serial, double n) {
  return weak ? n - serial * (n - 1.0) : 1.0 / (serial + (1.0 - serial) / n);
}

struct Scaling {
  std::vector<ScalePoint> points;
  int size = 0;                                  // that is extrapolated to
  double serial = -1.0;                          // below 0: nothing to fit
  double expected = 0.0, low = 0.0, high = 0.0;  // speed-up at the size that was asked for

  /// Of one size at least, nobody can say how long it takes.
  bool inconclusive() const {
    return std::ranges::any_of(points, [](const ScalePoint& one) { return one.trust == study::Trust::kInconclusive; });
  }
};

/// The interval of the extrapolation: the fit through the least and through the most that was reached.
Scaling fit(const ScaleCommand& command, std::vector<ScalePoint> points, int size) {
  Scaling scaling{.points = std::move(points), .size = size};
  for (std::size_t i = 1; i < scaling.points.size(); ++i) {
    ScalePoint& point = scaling.points[i];
    compare_rounds(scaling.points[0], command.weak ? point.size : 1.0, point);
  }
  scaling.serial = serial_share(command, scaling.points);
  if (scaling.serial < 0.0) return scaling;
  scaling.expected = speedup_at(command.weak, scaling.serial, size);
  for (double ScalePoint::*edge : {&ScalePoint::least, &ScalePoint::most}) {
    std::vector<ScalePoint> moved = scaling.points;
    for (ScalePoint& point : moved) point.speedup = point.*edge;
    const double at = speedup_at(command.weak, serial_share(command, moved), size);
    (edge == &ScalePoint::least ? scaling.low : scaling.high) = at;
  }
  return scaling;
}

void print(const ScaleCommand& command, const Scaling& scaling) {
  const char* members = trains(command) ? "ranks" : "nodes";
  std::printf("%s scaling of %s, one thread for each of the %s\n", command.weak ? "Weak" : "Strong",
              as_shell(command.words).c_str(), members);
  std::printf("%8s %12s %26s %19s %22s\n", members, "step", "speed-up (interval)", "efficiency of CPUs",
              "communication, waiting");
  bool crowded = false;
  for (const ScalePoint& point : scaling.points) {
    std::string remark =
        point.shares_cpus() ? fmt::format("  {} share {} CPUs: they take turns", members, point.cpus) : "";
    if (point.trust == study::Trust::kDisturbed) remark += "  the machine was disturbed";
    if (point.trust == study::Trust::kInconclusive) remark += "  inconclusive: others used the machine";
    crowded |= point.shares_cpus();
    std::printf("%8d %12s %26s %17.0f %% %20.0f %%%s\n", point.size, format_seconds(point.step_s()).c_str(),
                fmt::format("{:.2f} ({:.2f} to {:.2f})", point.speedup, point.least, point.most).c_str(),
                100 * point.efficiency_of_cpus(), 100 * median(point.exposed), remark.c_str());
  }
  if (crowded) {
    std::printf(
        "More %s than CPUs cannot be faster than as many as CPUs: what they lose is the price of turns, and no "
        "law of scaling; they are left out of the fit.\n",
        members);
  }
  if (scaling.inconclusive()) {
    std::printf(
        "Inconclusive: others used the machine, and more %s may only have taken more of it from them; on a "
        "quiet machine the numbers would be others.\n",
        members);
  }
  if (scaling.serial < 0.0) {
    std::printf("No size beyond one has a CPU for each of its members: nothing is fitted.\n");
    return;
  }
  std::printf("serial share %.1f %% (%s law); %d %s with a CPU each: %.2f times as fast, %.2f to %.2f\n",
              100 * scaling.serial, command.weak ? "Gustafson's" : "Amdahl's", scaling.size, members, scaling.expected,
              scaling.low, scaling.high);
}

nlohmann::ordered_json to_json(const ScaleCommand& command, const Scaling& scaling) {
  nlohmann::ordered_json json{{"command", as_shell(command.words)}, {"weak", command.weak}};
  for (const ScalePoint& point : scaling.points) {
    std::vector<double> means;
    for (const study::Summary& one : point.steps) means.push_back(one.mean);
    json["points"].push_back({{"size", point.size},
                              {"step_s", means},
                              {"speedup", point.speedup},
                              {"speedup_least", point.least},
                              {"speedup_most", point.most},
                              {"efficiency", point.efficiency},
                              {"efficiency_of_cpus", point.efficiency_of_cpus()},
                              {"communication_and_waiting", median(point.exposed)},
                              {"shares_cpus", point.shares_cpus()},
                              {"trust", to_string(point.trust)}});
  }
  json["inconclusive"] = scaling.inconclusive();
  if (scaling.serial >= 0.0) {
    json["serial_share"] = scaling.serial;
    json["extrapolated"] = {
        {"size", scaling.size}, {"speedup", scaling.expected}, {"low", scaling.low}, {"high", scaling.high}};
  }
  return json;
}

Result<ScaleQuestion> question_of(const ScaleCommand& command) {
  ScaleQuestion question{.ranks = command.extrapolate, .weak = command.weak, .link = kAssumedLink};
  if (command.latency_us > 0.0) question.link.latency_us = command.latency_us;
  if (command.gbit_per_s > 0.0) question.link.gb_per_s = command.gbit_per_s / 8.0;
  question.link_assumed = command.latency_us <= 0.0 || command.gbit_per_s <= 0.0;
  if (!command.memory.empty()) {
    question.memory_bytes = parse_bytes(command.memory);
    if (question.memory_bytes == 0) {
      return make_error(ErrorCode::kInvalidArgument, "--memory is \"{}\", expected a size such as 24GiB",
                        command.memory);
    }
  }
  return question;
}

/// The largest whose members have a CPU each; the largest of all where none but one has.
const ScalePoint& strategies_at(const std::vector<ScalePoint>& points) {
  const ScalePoint* found = &points.back();
  for (const ScalePoint& point : points) {
    if (point.size > 1 && !point.shares_cpus()) found = &point;
  }
  return *found;
}

Result<int> run_scale(const ScaleCommand& command) {
  BF_ASSIGN_OR_RETURN(const ScaleQuestion question, question_of(command));
  std::vector<ScalePoint> points;
  for (const int size : command.sizes) {
    points.push_back({.size = size, .steps = {}, .exposed = {}, .cpus = std::min(size, usable_threads())});
  }
  std::vector<StrategyPoint> strategies;
  if (const ScalePoint& most = strategies_at(points); trains(command) && most.size > 1) {
    strategies = strategy_points(most.size, most.cpus);
  }
  std::optional<study::Study> alone;
  for (int round = 1; round <= command.rounds; ++round) {
    for (ScalePoint& point : points) BF_TRY(run_point(command, round, point, alone));
    for (StrategyPoint& one : strategies) BF_TRY(run_strategy(command, round, one));
  }
  std::optional<ScaleVerdict> verdict;
  if (trains(command) && alone) {
    BF_ASSIGN_OR_RETURN(verdict, scale_verdict(*alone, question));
  }
  const Scaling scaling = fit(command, std::move(points), verdict ? verdict->asked.ranks : command.extrapolate);
  if (command.json) {
    nlohmann::ordered_json json = to_json(command, scaling);
    if (!strategies.empty()) json["strategies"] = strategies_json(judge_strategies(std::move(strategies)));
    if (verdict) json["ddp_or_fsdp"] = verdict_json(*verdict);
    std::printf("%s\n", dump_json(json, {.indent = 2}).c_str());
  } else {
    print(command, scaling);
    if (!strategies.empty()) std::printf("%s", strategies_text(judge_strategies(std::move(strategies))).c_str());
    if (verdict) std::printf("%s", verdict_text(*verdict).c_str());
  }
  return kExitOk;
}

std::string missing(ScaleCommand& command) {
  if (std::string lacks = missing_command(command.words); !lacks.empty()) return lacks;
  std::ranges::sort(command.sizes);
  if (command.sizes.front() != 1) return "1 among --sizes: the others are compared with it";
  if (command.weak && (!trains(command) || command.batch < 1)) {
    return "train and --batch-each N: weak scaling gives each rank as many sequences";
  }
  return {};
}

}  // namespace

void add_study_scale(Command study, Action& action) {
  auto sub = study.add_subcommand("scale", "The same command on 1, 2, 4, ... ranks (train) or nodes (generate)");
  auto command = std::make_shared<ScaleCommand>();
  sub.add_option("-o,--out", command->folder, "Folder for recordings and outputs of every run").show_default();
  sub.add_option("--sizes", command->sizes, "Numbers of ranks or nodes")
      .takes_one_each_time()
      .comma_separated()
      .in_range(1, 256)
      .show_default();
  sub.add_flag("--weak", command->weak, "Each rank keeps its share of work: the batch grows with the ranks");
  sub.add_option("--batch-each", command->batch, "With --weak: sequences of each rank in a step").in_range(1, 1 << 20);
  sub.add_option("--extrapolate", command->extrapolate, "The size that is predicted")
      .in_range(2, 1 << 20)
      .show_default();
  sub.add_option("--latency-us", command->latency_us, "Of links between those ranks, one way [50 assumed]")
      .in_range(1e-6, 1e9);
  sub.add_option("--gbit-per-s", command->gbit_per_s, "Of links between those ranks [8 assumed]").in_range(1e-6, 1e6);
  sub.add_option("--memory", command->memory, "Of each of those ranks, \"24GiB\" [this machine's, by CPU]");
  sub.add_option("--rounds", command->rounds, "Runs of each size, in turns").in_range(1, 100).show_default();
  sub.add_option("--warmup", command->warmup, "Steps that are dropped at the beginning")
      .in_range(0, 1 << 30)
      .show_default();
  sub.add_option("--measure", command->measure, "Steps that are measured after them")
      .in_range(1, 1 << 30)
      .show_default();
  sub.add_flag("--json", command->json, "JSON on stdout");
  sub.add_option("command", command->words, "After --: train or generate with its options").takes(1, -1);
  sub.footer(
      "Members that have no CPU of their own take turns and tell nothing of larger machines: they are shown, and left\n"
      "out of the fit. Of training it ends in two verdicts, DDP or dividing weights, gradients and moments (FSDP): of\n"
      "ddp, zero2 and zero3 as they ran here, on as many ranks as have a CPU each; and of more ranks elsewhere, from\n"
      "what one rank was measured to do and the formulas of butterfly plan --train.\n"
      "Examples:\n"
      "  butterfly study scale -- train --model tinytransformer-tiny --data synthetic:markov --steps 12 --batch 16\n"
      "  butterfly study scale --weak --batch-each 4 --sizes 1,2 -- train --model tinytransformer-tiny --data "
      "synthetic:markov --steps 12");
  run_later(
      sub, action, [command] { return run_scale(*command); }, [command] { return missing(*command); });
}

}  // namespace butterfly::app
