#include "study/scale_strategies.h"

#include <algorithm>

#include "butterfly/base/json.h"
#include "butterfly/base/statistics.h"
#include "butterfly/base/units.h"

namespace butterfly::app {
namespace {

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

std::string costs_of(const ScalePoint& point) {
  return fmt::format("{:.0f} % of it communication and waiting, {} sent by each rank, {} held",
                     100 * median(point.exposed), bytes_text(point.sent_bytes), bytes_text(point.held_bytes));
}

std::string reason_of(const StrategyVerdict& verdict) {
  const StrategyPoint& chosen = verdict.points[verdict.chosen];
  std::string text = fmt::format("{} took {} a step, {}", chosen.strategy, format_seconds(chosen.point.step_s()),
                                 costs_of(chosen.point));
  for (const StrategyPoint& one : verdict.points) {
    if (&one == &chosen) continue;
    const char* shown = verdict.chosen == 0 && one.point.most < 1.0    ? ", slower"
                        : verdict.chosen == 0 && one.point.least > 1.0 ? ", faster"
                        : verdict.chosen == 0                          ? ", no difference shown"
                                                                       : "";
    text += fmt::format("; {} {}{}: {}", one.strategy, format_seconds(one.point.step_s()), shown, costs_of(one.point));
  }
  return text;
}

}  // namespace

std::vector<StrategyPoint> strategy_points(int ranks, int cpus) {
  const ScalePoint point{.size = ranks, .cpus = cpus};
  return {{.strategy = "ddp", .scheme = "DDP", .point = point},
          {.strategy = "zero2", .scheme = "FSDP (SHARD_GRAD_OP)", .point = point},
          {.strategy = "zero3", .scheme = "FSDP (FULL_SHARD)", .point = point}};
}

StrategyVerdict judge_strategies(std::vector<StrategyPoint> points) {
  StrategyVerdict verdict{.points = std::move(points)};
  for (std::size_t i = 1; i < verdict.points.size(); ++i) {
    compare_rounds(verdict.points[0].point, 1.0, verdict.points[i].point);
    const ScalePoint& point = verdict.points[i].point;
    if (point.speedup > verdict.points[verdict.fastest].point.speedup) verdict.fastest = i;
  }
  if (verdict.points[verdict.fastest].point.least > 1.0) verdict.chosen = verdict.fastest;
  verdict.reason = reason_of(verdict);
  return verdict;
}

std::string strategies_text(const StrategyVerdict& verdict) {
  const ScalePoint& first = verdict.points[0].point;
  std::string text = fmt::format("\nDDP or FSDP, run with {} ranks{}\n", first.size,
                                 first.shares_cpus() ? fmt::format(" that share {} CPUs", first.cpus) : "");
  text += fmt::format("{:<7} {:>12} {:>26} {:>23} {:>16} {:>16}\n", "", "step", "speed by ddp's",
                      "communication, waiting", "sent by a rank", "held by a rank");
  bool inconclusive = false;
  for (const StrategyPoint& one : verdict.points) {
    const ScalePoint& point = one.point;
    inconclusive |= point.trust == study::Trust::kInconclusive;
    text += fmt::format("{:<7} {:>12} {:>26} {:>21.0f} % {:>16} {:>16}\n", one.strategy, format_seconds(point.step_s()),
                        fmt::format("{:.2f} ({:.2f} to {:.2f})", point.speedup, point.least, point.most),
                        100 * median(point.exposed), bytes_text(point.sent_bytes), bytes_text(point.held_bytes));
  }
  if (inconclusive) text += "Inconclusive: others used the machine meanwhile.\n";
  return text + fmt::format("faster here: {}: {}\n", verdict.points[verdict.chosen].scheme, verdict.reason);
}

nlohmann::ordered_json strategies_json(const StrategyVerdict& verdict) {
  nlohmann::ordered_json strategies = nlohmann::ordered_json::object();
  bool inconclusive = false;
  for (const StrategyPoint& one : verdict.points) {
    std::vector<double> means;
    for (const study::Summary& step : one.point.steps) means.push_back(step.mean);
    inconclusive |= one.point.trust == study::Trust::kInconclusive;
    strategies[std::string(one.strategy)] = {{"step_s", means},
                                             {"speedup", one.point.speedup},
                                             {"speedup_least", one.point.least},
                                             {"speedup_most", one.point.most},
                                             {"communication_and_waiting", median(one.point.exposed)},
                                             {"sent_bytes_of_each", one.point.sent_bytes},
                                             {"held_bytes_of_each", one.point.held_bytes},
                                             {"trust", to_string(one.point.trust)}};
  }
  return {{"ranks", verdict.points[0].point.size},
          {"shares_cpus", verdict.points[0].point.shares_cpus()},
          {"strategies", std::move(strategies)},
          {"inconclusive", inconclusive},
          {"verdict", verdict.chosen == 0 ? "DDP" : "FSDP"},
          {"strategy", verdict.points[verdict.chosen].strategy},
          {"reason", verdict.reason}};
}

}  // namespace butterfly::app
