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

struct Point {
  int size = 1;
  std::vector<study::Summary> steps;  // of each round
  std::vector<double> exposed;        // share of the step that is communication and waiting, each round
  double speedup = 1.0, least = 1.0, most = 1.0;
  double efficiency = 1.0;
  int cpus = 1;                               // that its members have together
  study::Trust trust = study::Trust::kQuiet;  // the worst round's

  bool shares_cpus() const { return cpus < size; }  // they take turns
  double efficiency_of_cpus() const { return efficiency * size / cpus; }
  double step_s() const {
    std::vector<double> means;
    for (const study::Summary& one : steps) means.push_back(one.mean);
    return median(means);
  }
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

/// Of the kind of step that took most time: decode of an answer, the steps of training.
const study::WorkloadStudy* main_work(const study::Study& result) {
  const study::WorkloadStudy* found = nullptr;
  double most = 0.0;
  for (const study::WorkloadStudy& work : result.workloads) {
    const double wall = work.tracks[work.lead].wall_s;
    if (wall <= most) continue;
    most = wall;
    found = &work;
  }
  return found;
}

/// What the run found goes to `alone` where one member computed.
Status run_point(const ScaleCommand& command, int round, Point& point, std::optional<study::Study>& alone) {
  const std::string folder = fmt::format("{}/{}/{}", command.folder, point.size, round);
  const ChildRun child{.words = words_of(command, point.size),
                       .recordings = folder + "/recordings",
                       .environment = {},
                       .output = folder + "/stdout.txt"};
  BF_TRY(make_empty(child.recordings));
  std::fprintf(stderr, "study: round %d of %d, %d %s\n", round, command.rounds, point.size,
               trains(command) ? "ranks" : "nodes");
  BF_ASSIGN_OR_RETURN(const int code, run_recorded(child));
  if (code == kExitInvalid) {
    std::fprintf(stderr, "study: that run says that it is INVALID (%s); its times count\n", child.output.c_str());
  } else if (code != 0) {
    return make_error(ErrorCode::kInvalidArgument, "'{}' ended with status {}", as_shell(child.words), code);
  }
  BF_TRY(write_about(folder, {.command = as_shell(child.words), .warmup = command.warmup, .measure = command.measure}));
  BF_ASSIGN_OR_RETURN(StudyFolder read, read_study(folder, -1, -1));
  const study::WorkloadStudy* work = main_work(read.result);
  if (work == nullptr) return make_error(ErrorCode::kNotFound, "{}: no steps were recorded", folder);
  point.steps.push_back(work->step_s);
  const study::TrackTime& lead = work->tracks[work->lead];
  point.exposed.push_back(lead.wall_s > 0.0 ? (lead.communication_s + lead.wait_s) / lead.wall_s : 0.0);
  point.trust = std::max(point.trust, read.result.quality.trust);
  if (point.size == 1) alone = std::move(read.result);
  return {};
}

/// Ratios within a round, so that what disturbs the machine for minutes meets both. From the least to the most that the
/// steps' 95 % intervals allow.
void compare_with_one(const ScaleCommand& command, const Point& one, Point& point) {
  const double work = command.weak ? static_cast<double>(point.size) / one.size : 1.0;
  std::vector<double> ratios;
  point.least = INFINITY;
  point.most = 0.0;
  for (std::size_t round = 0; round < std::min(one.steps.size(), point.steps.size()); ++round) {
    const study::Summary &before = one.steps[round], &after = point.steps[round];
    ratios.push_back(work * before.mean / after.mean);
    point.least =
        std::min(point.least, work * std::max(0.0, before.mean - before.half_width) / (after.mean + after.half_width));
    const double least_s = after.mean - after.half_width;
    if (least_s > 0.0) point.most = std::max(point.most, work * (before.mean + before.half_width) / least_s);
  }
  point.speedup = median(ratios);
  point.most = std::max(point.most, point.speedup);
  point.efficiency = point.speedup * one.size / point.size;
}

/// Amdahl's law, time(n) / time(1) = s + (1 - s) / n, by least squares over the sizes; of weak scaling Gustafson's,
/// speedup(n) = n - s (n - 1). Only sizes whose members have a CPU each tell something of it.
double serial_share(const ScaleCommand& command, const std::vector<Point>& points) {
  double above = 0.0, below = 0.0;
  for (const Point& point : points) {
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
  std::vector<Point> points;
  int size = 0;                                  // that is extrapolated to
  double serial = -1.0;                          // below 0: nothing to fit
  double expected = 0.0, low = 0.0, high = 0.0;  // speed-up at the size that was asked for

  /// Of one size at least, nobody can say how long it takes.
  bool inconclusive() const {
    return std::ranges::any_of(points, [](const Point& one) { return one.trust == study::Trust::kInconclusive; });
  }
};

/// The interval of the extrapolation: the fit through the least and through the most that was reached.
Scaling fit(const ScaleCommand& command, std::vector<Point> points, int size) {
  Scaling scaling{.points = std::move(points), .size = size};
  for (std::size_t i = 1; i < scaling.points.size(); ++i) {
    compare_with_one(command, scaling.points[0], scaling.points[i]);
  }
  scaling.serial = serial_share(command, scaling.points);
  if (scaling.serial < 0.0) return scaling;
  scaling.expected = speedup_at(command.weak, scaling.serial, size);
  for (double Point::*edge : {&Point::least, &Point::most}) {
    std::vector<Point> moved = scaling.points;
    for (Point& point : moved) point.speedup = point.*edge;
    const double at = speedup_at(command.weak, serial_share(command, moved), size);
    (edge == &Point::least ? scaling.low : scaling.high) = at;
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
  for (const Point& point : scaling.points) {
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
  for (const Point& point : scaling.points) {
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

Result<int> run_scale(const ScaleCommand& command) {
  BF_ASSIGN_OR_RETURN(const ScaleQuestion question, question_of(command));
  std::vector<Point> points;
  for (const int size : command.sizes) {
    points.push_back({.size = size, .steps = {}, .exposed = {}, .cpus = std::min(size, usable_threads())});
  }
  std::optional<study::Study> alone;
  for (int round = 1; round <= command.rounds; ++round) {
    for (Point& point : points) BF_TRY(run_point(command, round, point, alone));
  }
  std::optional<ScaleVerdict> verdict;
  if (trains(command) && alone) {
    BF_ASSIGN_OR_RETURN(verdict, scale_verdict(*alone, question));
  }
  const Scaling scaling = fit(command, std::move(points), verdict ? verdict->asked.ranks : command.extrapolate);
  if (command.json) {
    nlohmann::ordered_json json = to_json(command, scaling);
    if (verdict) json["ddp_or_fsdp"] = verdict_json(*verdict);
    std::printf("%s\n", dump_json(json, {.indent = 2}).c_str());
  } else {
    print(command, scaling);
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
      "out of the fit. Of training it ends in a verdict: DDP, or dividing weights, gradients and moments (FSDP), from\n"
      "what one rank was measured to do and the formulas of butterfly plan --train.\n"
      "Examples:\n"
      "  butterfly study scale -- train --model tinytransformer-tiny --data synthetic:markov --steps 12 --batch 16\n"
      "  butterfly study scale --weak --batch-each 4 --sizes 1,2 -- train --model tinytransformer-tiny --data "
      "synthetic:markov --steps 12");
  run_later(
      sub, action, [command] { return run_scale(*command); }, [command] { return missing(*command); });
}

}  // namespace butterfly::app
