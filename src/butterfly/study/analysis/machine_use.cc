#include "butterfly/study/analysis/machine_use.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "butterfly/base/statistics.h"
#include "butterfly/study/analysis/samples.h"

namespace butterfly::study {
namespace {

constexpr std::size_t kTimelinePoints = 200;

double resident(const trace::Sample& sample) {
  return static_cast<double>(sample.resident_bytes);
}

MemoryPoint point_of(const trace::Sample& sample) {
  MemoryPoint point{.at_s = 1e-9 * static_cast<double>(sample.at_ns), .resident = resident(sample), .held = {}};
  for (const std::uint64_t bytes : sample.held_bytes) point.held.push_back(static_cast<double>(bytes));
  return point;
}

/// The cache of keys and values has a limit and fills up to it under load, and a process that records keeps its spans:
/// neither is growth.
double growing(const trace::Sample& sample, const std::vector<std::uint64_t>& span_ends) {
  const auto spans = std::ranges::upper_bound(span_ends, sample.at_ns) - span_ends.begin();
  return resident(sample) - static_cast<double>(sample.held_bytes[static_cast<std::size_t>(trace::Owner::kKvCache)]) -
         static_cast<double>(spans) * sizeof(trace::Span);
}

/// By least squares; of a straight line's share in the change, too.
void set_growth(MemoryUse& use, const Process& process, const Window& window) {
  std::vector<std::uint64_t> span_ends;
  for (const SpanNode& span : process.spans) span_ends.push_back(span.end_ns);
  std::ranges::sort(span_ends);
  double count = 0.0, t = 0.0, y = 0.0, tt = 0.0, ty = 0.0, yy = 0.0;
  for (const trace::Sample& sample : process.samples) {
    if (sample.at_ns < window.begin_ns || sample.at_ns > window.end_ns) continue;
    const double at = 1e-9 * static_cast<double>(sample.at_ns - window.begin_ns), bytes = growing(sample, span_ends);
    ++count;
    t += at;
    y += bytes;
    tt += at * at;
    ty += at * bytes;
    yy += bytes * bytes;
  }
  const double var_t = count * tt - t * t, var_y = count * yy - y * y, cov = count * ty - t * y;
  if (count < 4 || var_t <= 0.0) return;
  use.growth_per_s = cov / var_t;
  use.growth = use.growth_per_s * window.seconds();
  if (var_y > 0.0) use.growth_fit = cov * cov / (var_t * var_y);
}

std::string machine_of(const Process& process) {
  const std::string boot = process.fact("boot_id");
  return boot.empty() ? process.file : boot;
}

/// All recorded processes of one machine.
struct Machine {
  std::string host;
  double busy_s = 0.0, stolen_s = 0.0, own_s = 0.0, cpus = 0.0;
  double run_queue_share = 0.0, slowdown = 0.0;
};

double cpu_seconds(const Process& process, const Window& window) {
  return 1e-9 * growth_between(process.samples, window.begin_ns, window.end_ns,
                               [](const trace::Sample& sample) { return static_cast<double>(sample.cpu_ns); });
}

/// Of the time in which its threads wanted a CPU, the share in which they had none.
double run_queue_share(const Process& process, const Window& window) {
  const double waited_s =
      1e-9 * growth_between(process.samples, window.begin_ns, window.end_ns,
                            [](const trace::Sample& sample) { return static_cast<double>(sample.run_queue_ns); });
  const double ran_s = cpu_seconds(process, window);
  return waited_s > 0.0 ? waited_s / (waited_s + ran_s) : 0.0;
}

/// The median of the timed loop over its best time, less one: single times are long where the thread lost its CPU.
double slowdown_of(const Process& process) {
  std::vector<double> loops;
  for (const trace::Sample& sample : process.samples) {
    if (sample.loop_ns > 0.0 && std::isfinite(sample.loop_ns)) loops.push_back(sample.loop_ns);
  }
  if (loops.size() < 4) return 0.0;
  return median(loops) / *std::ranges::min_element(loops) - 1.0;
}

std::map<std::string, Machine> machines_of(const RecordedRun& run, const Window& window) {
  std::map<std::string, Machine> machines;
  for (const Process& process : run.processes) {
    if (process.samples.empty()) continue;
    Machine& machine = machines[machine_of(process)];
    const auto growth = [&process, &window](const SampledValue& value) {
      return 1e-9 * growth_between(process.samples, window.begin_ns, window.end_ns, value);
    };
    machine.host = process.fact("host");
    machine.busy_s =
        std::max(machine.busy_s,
                 growth([](const trace::Sample& sample) { return static_cast<double>(sample.machine_busy_ns); }));
    machine.stolen_s =
        std::max(machine.stolen_s,
                 growth([](const trace::Sample& sample) { return static_cast<double>(sample.machine_stolen_ns); }));
    machine.own_s += cpu_seconds(process, window);
    machine.cpus = std::max(machine.cpus, process.number("cpus"));
    machine.run_queue_share = std::max(machine.run_queue_share, run_queue_share(process, window));
    machine.slowdown = std::max(machine.slowdown, slowdown_of(process));
  }
  return machines;
}

void judge(Quality& quality, double value, double disturbed, double inconclusive, std::string sentence) {
  if (value < disturbed) return;
  quality.trust = std::max(quality.trust, value < inconclusive ? Trust::kDisturbed : Trust::kInconclusive);
  quality.reasons.push_back(std::move(sentence));
}

void judge_machine(Quality& quality, const Machine& machine, const Window& window, const TrustLimits& limits) {
  const double wanted_s = machine.busy_s + machine.stolen_s;
  const double stolen = wanted_s > 0.0 ? machine.stolen_s / wanted_s : 0.0;
  // The kernel counts in ticks of 10 ms: less than a few of them are nothing.
  constexpr double kTicks = 0.05;
  const double foreign_s = std::max(0.0, machine.busy_s - machine.own_s - kTicks);
  const double foreign = window.seconds() > 0.0 ? foreign_s / window.seconds() : 0.0;
  quality.stolen_share = std::max(quality.stolen_share, stolen);
  quality.foreign_cpus = std::max(quality.foreign_cpus, foreign);
  quality.run_queue_share = std::max(quality.run_queue_share, machine.run_queue_share);
  quality.slowdown = std::max(quality.slowdown, machine.slowdown);
  const std::string host = machine.host.empty() ? "the machine" : machine.host;
  if (machine.stolen_s > kTicks) {
    judge(quality, stolen, limits.stolen_disturbed, limits.stolen_inconclusive,
          fmt::format("the host took {:.0f} % of the CPU time that was wanted on {}", 100 * stolen, host));
  }
  const double foreign_share = foreign / std::max(machine.cpus, 1.0);
  // Others on CPUs that we leave free take no time from us, but for caches and memory.
  const bool felt = machine.run_queue_share >= limits.run_queue_disturbed;
  const double most = felt ? foreign_share : std::min(foreign_share, limits.foreign_inconclusive * 0.99);
  judge(quality, most, limits.foreign_disturbed, limits.foreign_inconclusive,
        fmt::format("other programs used {:.2f} CPUs of {}", foreign, host));
  const bool alone = foreign_share < limits.foreign_disturbed && stolen < limits.stolen_disturbed;
  // Waiting for a CPU that nobody else uses is our own doing, and a cause, not a disturbance.
  if (!alone) {
    judge(quality, machine.run_queue_share, limits.run_queue_disturbed, limits.run_queue_inconclusive,
          fmt::format("threads waited {:.0f} % of the time in which they wanted a CPU of {}",
                      100 * machine.run_queue_share, host));
  }
  judge(quality, machine.slowdown, limits.slowdown_disturbed, limits.slowdown_inconclusive,
        fmt::format("a timed loop took {:.0f} % longer than at its best on {}: the processor's speed changed",
                    100 * machine.slowdown, host));
}

}  // namespace

std::string_view to_string(Trust trust) {
  if (trust == Trust::kQuiet) return "quiet";
  return trust == Trust::kDisturbed ? "disturbed" : "inconclusive";
}

Window window_of(const RecordedRun& run, const std::vector<Workload>& workloads) {
  Window window{.begin_ns = UINT64_MAX};
  for (const Workload& workload : workloads) {
    for (const Track& track : workload.tracks) {
      if (track.periods.empty()) continue;
      window.begin_ns = std::min(window.begin_ns, track.periods.front().begin_ns);
      window.end_ns = std::max({window.end_ns, track.periods.back().end_ns, track.range_end_ns});
    }
  }
  return window.end_ns > window.begin_ns ? window : Window{.begin_ns = 0, .end_ns = run.end_ns()};
}

std::vector<MemoryUse> memory_of(const RecordedRun& run, const Window& window) {
  std::vector<MemoryUse> result;
  for (const Process& process : run.processes) {
    if (process.samples.empty()) continue;
    MemoryUse use{.process = process.name};
    const trace::Sample& peak = *std::ranges::max_element(process.samples, {}, &trace::Sample::resident_bytes);
    use.peak = resident(peak);
    use.files = static_cast<double>(peak.file_bytes);
    use.other = use.peak - use.files;
    for (std::size_t i = 0; i < peak.held_bytes.size(); ++i) {
      const auto bytes = static_cast<double>(peak.held_bytes[i]);
      if (bytes > 0.0) use.held[std::string(to_string(static_cast<trace::Owner>(i)))] = bytes;
      use.other -= bytes;
    }
    const trace::Sample& last = process.samples.back();
    use.heap = static_cast<double>(last.heap_bytes) + static_cast<double>(last.heap_free_bytes);
    if (use.heap > 0.0) use.heap_free_share = static_cast<double>(last.heap_free_bytes) / use.heap;
    set_growth(use, process, window);
    const std::size_t every = process.samples.size() / kTimelinePoints + 1;
    for (std::size_t i = 0; i < process.samples.size(); i += every)
      use.timeline.push_back(point_of(process.samples[i]));
    if ((process.samples.size() - 1) % every != 0) use.timeline.push_back(point_of(last));
    result.push_back(std::move(use));
  }
  return result;
}

std::vector<ProcessUse> processes_of(const RecordedRun& run, const Window& window) {
  std::vector<ProcessUse> result;
  for (const Process& process : run.processes) {
    ProcessUse use{.name = process.name,
                   .host = process.fact("host"),
                   .seconds = 1e-9 * static_cast<double>(process.end_ns - process.begin_ns),
                   .threads = process.number("threads") * std::max(1.0, process.number("ranks.in_process")),
                   .cpus = process.number("cpus"),
                   .usable_cpus = process.number("cpus.usable"),
                   .run_queue_share = run_queue_share(process, window),
                   .clock_error_us = 1e-3 * static_cast<double>(process.clock_error_ns),
                   .spans = process.spans.size(),
                   .lost = process.lost + process.dropped};
    if (use.seconds > 0.0) {
      use.recording_share = 1e-9 * static_cast<double>(use.spans) * process.number("trace.zone_ns") / use.seconds;
    }
    if (window.seconds() > 0.0) use.cpus_used = cpu_seconds(process, window) / window.seconds();
    result.push_back(std::move(use));
  }
  return result;
}

Quality quality_of(const RecordedRun& run, const Window& window, const TrustLimits& limits) {
  Quality quality;
  for (const auto& [id, machine] : machines_of(run, window)) judge_machine(quality, machine, window, limits);
  return quality;
}

}  // namespace butterfly::study
