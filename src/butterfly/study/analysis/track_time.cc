#include "butterfly/study/analysis/track_time.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "butterfly/study/analysis/roof.h"

namespace butterfly::study {
namespace {

using trace::Zone;
using trace::ZoneKind;

constexpr double kSecond = 1e-9;
constexpr const char* kCommunicationPhase = "communication";
constexpr const char* kIdlePhase = "idle";

/// What a span is inside of.
struct Around {
  const SpanNode* step = nullptr;
  const SpanNode* phase = nullptr;
  bool wait = false;
  bool communication = false;  // or in the phase that is nothing else
};

Around around(const Process& process, const SpanNode& span) {
  Around found;
  const SpanNode* at = &span;
  while (true) {
    const ZoneKind kind = kind_of(at->zone);
    if (kind == ZoneKind::kStep && found.step == nullptr) found.step = at;
    if (kind == ZoneKind::kPhase && found.phase == nullptr) found.phase = at;
    if (kind == ZoneKind::kWait) found.wait = true;
    if (kind == ZoneKind::kCommunication || at->zone == Zone::kPhaseCommunication) found.communication = true;
    if (at->parent == kNoParent) return found;
    at = &process.spans[static_cast<std::size_t>(at->parent)];
  }
}

int layer_around(const Process& process, const SpanNode& span) {
  int at = span.parent;
  while (at != kNoParent && process.spans[static_cast<std::size_t>(at)].zone != Zone::kLayer) {
    at = process.spans[static_cast<std::size_t>(at)].parent;
  }
  return at;
}

/// Collectives hold others, and sending.
bool inside_communication(const Process& process, const SpanNode& span) {
  return span.parent != kNoParent &&
         around(process, process.spans[static_cast<std::size_t>(span.parent)]).communication;
}

std::string phase_of(const SpanNode& span, const Around& outer) {
  const ZoneKind kind = kind_of(span.zone);
  if (kind == ZoneKind::kWait) return std::string(to_string(span.zone));
  if (outer.wait) return "wait";
  if (outer.communication) return kCommunicationPhase;
  if (kind == ZoneKind::kOther) return std::string(to_string(span.zone));
  if (outer.phase != nullptr) return std::string(to_string(outer.phase->zone));
  if (outer.step == nullptr) return std::string(to_string(span.zone));
  if (outer.step->zone == Zone::kStepTurn) {
    return kind == ZoneKind::kStep ? "schedule" : std::string(to_string(span.zone));
  }
  return outer.step->zone == Zone::kStepTrain ? "rest of the step" : "forward";
}

bool is_rest(ZoneKind kind) {
  return kind == ZoneKind::kStep || kind == ZoneKind::kPhase || kind == ZoneKind::kLayer;
}

/// Time in communication on threads of the process that have no steps, while the track's steps ran.
double hidden_seconds(const Process& process, const Track& track) {
  const std::uint64_t begin_ns = track.periods.front().begin_ns, end_ns = track.periods.back().end_ns;
  double sum = 0.0;
  for (const SpanNode& span : process.spans) {
    if (span.thread == track.thread || kind_of(span.zone) != ZoneKind::kCommunication) continue;
    const std::uint64_t begin = std::max(begin_ns, span.begin_ns), end = std::min(end_ns, span.end_ns);
    const Around outer = around(process, span);
    if (end > begin && !outer.wait && outer.step == nullptr && !inside_communication(process, span))
      sum += kSecond * static_cast<double>(end - begin);
  }
  return sum;
}

using OperatorKey = std::tuple<Zone, trace::Pass, std::uint8_t>;

std::string operator_name(const OperatorKey& key) {
  const auto [zone, pass, type] = key;
  std::string name(to_string(zone));
  if (pass != trace::Pass::kForward) name += fmt::format(" {}", to_string(pass));
  return name;
}

/// With sums that are needed on the way.
struct OperatorSum {
  OperatorTime time;
  double least_s = 0.0, wall_s = 0.0, peak_flops = 0.0, peak_bytes = 0.0;
  std::array<double, kCacheLevels> cache_least_s{};
  bool roof_known = true;
};

void add_operations(const Process& process, const Track& track, double wall_s,
                    std::map<OperatorKey, OperatorSum>& sums) {
  std::map<std::string, Roof> roofs;
  each_measured_span(process, track, [&](const SpanNode& span, std::uint64_t own_ns) {
    const ZoneKind kind = kind_of(span.zone);
    if (is_rest(kind) || kind == ZoneKind::kWait) return;  // waits are phases
    OperatorSum& sum = sums[{span.zone, span.work.pass, span.work.type}];
    const std::string type = type_name(span.work.type);
    const auto roof = roofs.try_emplace(type, roof_of(process, type)).first->second;
    const auto flops = static_cast<double>(span.work.flops), bytes = static_cast<double>(span.work.bytes);
    const double least_s = roof.least_s(flops, bytes);
    sum.time.type = type;
    sum.time.kind = is_matmul(span.zone) ? "matmul" : std::string(to_string(kind));
    ++sum.time.calls;
    sum.time.total_s += kSecond * static_cast<double>(span.duration_ns());
    sum.time.own_s += kSecond * static_cast<double>(own_ns);
    sum.time.flops += flops;
    sum.time.bytes += bytes;
    sum.least_s += least_s;
    for (int level = 0; level < kCacheLevels; ++level) {
      sum.cache_least_s[static_cast<std::size_t>(level)] += roof.in_cache(level).least_s(flops, bytes);
    }
    sum.roof_known = sum.roof_known && least_s > 0.0;
    sum.peak_flops = std::max(sum.peak_flops, roof.flops_per_s);
    sum.peak_bytes = std::max(sum.peak_bytes, roof.bytes_per_s);
    sum.wall_s = std::max(sum.wall_s, wall_s);
  });
}

OperatorTime finished(const OperatorKey& key, const OperatorSum& sum) {
  OperatorTime time = sum.time;
  time.name = operator_name(key);
  if (sum.wall_s > 0.0) time.share = time.own_s / sum.wall_s;
  if (time.total_s > 0.0) {
    time.gflops_per_s = 1e-9 * time.flops / time.total_s;
    time.gb_per_s = 1e-9 * time.bytes / time.total_s;
    if (sum.peak_flops > 0.0) time.share_of_peak = time.flops / time.total_s / sum.peak_flops;
    if (sum.roof_known && time.kind != "communication") {
      time.share_of_roof = sum.least_s / time.total_s;
      for (std::size_t level = 0; level < kCacheLevels; ++level) {
        time.share_of_cache_roof[level] = sum.cache_least_s[level] / time.total_s;
      }
    }
  }
  if (time.flops > 0.0 && time.bytes > 0.0) time.intensity = time.flops / time.bytes;
  if (sum.peak_bytes > 0.0 && sum.peak_flops > 0.0) time.ridge = sum.peak_flops / sum.peak_bytes;
  time.memory_bound = time.ridge > 0.0 && time.intensity < time.ridge;
  return time;
}

using Interval = std::pair<std::uint64_t, std::uint64_t>;

bool is_pause(const SpanNode& span) {
  const ZoneKind kind = kind_of(span.zone);
  return kind == ZoneKind::kWait || kind == ZoneKind::kCommunication;
}

/// Its waits, or what its steps have beside waits and communication; by time, apart from each other.
std::vector<Interval> intervals(const Process& process, const Track& track, bool waits) {
  std::vector<Interval> found;
  for (const Period& period : track.periods) {
    const SpanNode& step = process.spans[static_cast<std::size_t>(period.step)];
    std::uint64_t at = step.begin_ns;
    const Track one{.process = track.process, .thread = track.thread, .name = {}, .periods = {period}};
    std::uint64_t paused_until = 0;
    each_measured_span(process, one, [&](const SpanNode& span, std::uint64_t) {
      if (!is_pause(span) || span.begin_ns < paused_until) return;
      paused_until = span.end_ns;
      if (waits) {
        if (kind_of(span.zone) == ZoneKind::kWait || span.zone == Zone::kReceive) {
          found.emplace_back(span.begin_ns, std::min(span.end_ns, period.end_ns));
        }
      } else if (span.begin_ns < step.end_ns) {
        if (span.begin_ns > at) found.emplace_back(at, span.begin_ns);
        at = std::min(span.end_ns, step.end_ns);
      }
    });
    if (!waits && at < step.end_ns) found.emplace_back(at, step.end_ns);
  }
  return found;
}

double common_seconds(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0.0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint64_t begin = std::max(a[i].first, b[j].first), end = std::min(a[i].second, b[j].second);
    if (end > begin) sum += kSecond * static_cast<double>(end - begin);
    ++(a[i].second < b[j].second ? i : j);
  }
  return sum;
}

}  // namespace

TrackTime track_time(const RecordedRun& run, const Track& track) {
  const Process& process = run.processes[static_cast<std::size_t>(track.process)];
  TrackTime time{.name = track.name,
                 .process = process.name,
                 .scheduler = track.scheduler,
                 .steps = static_cast<int>(track.periods.size()),
                 .wall_s = track.wall_s()};
  std::map<std::string, PhaseTime> phases;
  const double recording_s = kSecond * process.number("trace.zone_ns");  // one span: it falls between operations
  double covered_s = 0.0;
  each_measured_span(process, track, [&](const SpanNode& span, std::uint64_t own_ns) {
    const Around outer = around(process, span);
    const double own_s = kSecond * static_cast<double>(own_ns);
    PhaseTime& phase = phases[phase_of(span, outer)];
    phase.seconds += own_s;
    if (is_rest(kind_of(span.zone)) && !is_stage_of(track, span)) phase.rest_s += own_s;
    phase.recording_s += recording_s;
    covered_s += own_s;
    time.flops += static_cast<double>(span.work.flops);
    if (outer.wait) {
      time.wait_s += own_s;
    } else if (outer.communication) {
      time.communication_s += own_s;
    }
  });
  time.idle_s = std::max(0.0, time.wall_s - covered_s);
  if (time.idle_s > 0.0) phases[kIdlePhase].seconds = time.idle_s;
  for (auto& [name, phase] : phases) {
    phase.name = name;
    phase.recording_s = std::min(phase.recording_s, phase.rest_s);
    phase.rest_s -= phase.recording_s;
    if (time.wall_s > 0.0) phase.share = phase.seconds / time.wall_s;
    time.phases.push_back(phase);
  }
  std::ranges::stable_sort(time.phases, std::greater{}, &PhaseTime::seconds);
  time.busy_s = std::max(0.0, time.wall_s - time.idle_s - time.wait_s - time.communication_s);
  time.hidden_s = hidden_seconds(process, track);
  std::vector<double> steps;
  for (const Period& period : track.periods) steps.push_back(kSecond * static_cast<double>(period.wall_ns()));
  time.step_s = summarize(steps);
  return time;
}

std::vector<OperatorTime> operator_times(const RecordedRun& run, const Workload& workload) {
  std::map<bool, double> wall_s;  // of schedulers, of all others
  for (const Track& track : workload.tracks) wall_s[track.scheduler] += track.wall_s();
  std::map<OperatorKey, OperatorSum> sums;
  for (const Track& track : workload.tracks) {
    add_operations(run.processes[static_cast<std::size_t>(track.process)], track, wall_s[track.scheduler], sums);
  }
  std::vector<OperatorTime> times;
  for (const auto& [key, sum] : sums) times.push_back(finished(key, sum));
  std::ranges::stable_sort(times, std::greater{}, &OperatorTime::own_s);
  return times;
}

std::vector<LayerTime> layer_times(const RecordedRun& run, const Workload& workload) {
  std::map<std::pair<std::uint32_t, std::string>, LayerTime> layers;
  for (const Track& track : workload.tracks) {
    const Process& process = run.processes[static_cast<std::size_t>(track.process)];
    std::vector<LayerTime*> open(process.spans.size(), nullptr);
    const double steps = static_cast<double>(track.periods.size()), wall_s = track.wall_s();
    each_measured_span(process, track, [&](const SpanNode& span, std::uint64_t) {
      const auto at = static_cast<std::size_t>(&span - process.spans.data());
      LayerTime* layer = span.parent == kNoParent ? nullptr : open[static_cast<std::size_t>(span.parent)];
      if (span.zone == Zone::kLayer) {
        layer = &layers[{span.work.number, track.name}];
        const double seconds = kSecond * static_cast<double>(span.duration_ns());
        layer->layer = static_cast<int>(span.work.number);
        layer->track = track.name;
        layer->seconds_per_step += seconds / steps;
        layer->share += seconds / wall_s;
      }
      if (layer != nullptr) layer->flops_per_step += static_cast<double>(span.work.flops) / steps;
      open[at] = layer;
    });
  }
  std::vector<LayerTime> result;
  for (auto& [key, layer] : layers) result.push_back(std::move(layer));
  return result;
}

int projections_per_layer(const RecordedRun& run, const Workload& workload) {
  int most = 0;
  for (const Track& track : workload.tracks) {
    const Process& process = run.processes[static_cast<std::size_t>(track.process)];
    std::map<int, int> counts;  // by the span of the layer
    each_measured_span(process, track, [&](const SpanNode& span, std::uint64_t) {
      const bool projects =
          span.zone == Zone::kQkv || span.zone == Zone::kQuery || span.zone == Zone::kKey || span.zone == Zone::kValue;
      if (!projects || span.work.pass != trace::Pass::kForward) return;
      const int layer = layer_around(process, span);
      if (layer != kNoParent) most = std::max(most, ++counts[layer]);
    });
  }
  return most;
}

std::vector<WaitFor> waits_for(const RecordedRun& run, const Workload& workload) {
  std::vector<std::vector<Interval>> busy;
  const auto process_of = [&run](const Track& track) -> const Process& {
    return run.processes[static_cast<std::size_t>(track.process)];
  };
  for (const Track& track : workload.tracks) busy.push_back(intervals(process_of(track), track, false));
  std::vector<WaitFor> result;
  for (std::size_t i = 0; i < workload.tracks.size(); ++i) {
    const Track& track = workload.tracks[i];
    const std::vector<Interval> waits = intervals(process_of(track), track, true);
    std::vector<WaitFor> of_one;
    for (std::size_t j = 0; j < workload.tracks.size(); ++j) {
      const double seconds = i == j ? 0.0 : common_seconds(waits, busy[j]);
      if (seconds <= 0.0) continue;
      of_one.push_back({track.name, workload.tracks[j].name, seconds, seconds / track.wall_s()});
    }
    std::ranges::stable_sort(of_one, std::greater{}, &WaitFor::seconds);
    if (of_one.size() > 3) of_one.resize(3);
    result.insert(result.end(), of_one.begin(), of_one.end());
  }
  return result;
}

double seconds_on_the_way(const RecordedRun& run, const Workload& workload) {
  const auto process_of = [&run](const Track& track) -> const Process& {
    return run.processes[static_cast<std::size_t>(track.process)];
  };
  const Track& lead = workload.tracks[workload.lead];
  if (!lead.scheduler) return 0.0;
  std::vector<Interval> busy;
  for (const Track& track : workload.tracks) {
    const std::vector<Interval> one = intervals(process_of(track), track, false);
    busy.insert(busy.end(), one.begin(), one.end());
  }
  std::ranges::sort(busy);
  std::vector<Interval> together;
  for (const Interval& one : busy) {
    if (together.empty() || one.first > together.back().second) {
      together.push_back(one);
    } else {
      together.back().second = std::max(together.back().second, one.second);
    }
  }
  const std::vector<Interval> waits = intervals(process_of(lead), lead, true);
  double waited_s = 0.0;
  for (const auto& [begin, end] : waits) waited_s += end > begin ? kSecond * static_cast<double>(end - begin) : 0.0;
  return waited_s - common_seconds(waits, together);
}

std::vector<TimelineBar> timeline_of(const RecordedRun& run, const Workload& workload, std::size_t bars_max) {
  const Track& lead = workload.tracks[workload.lead];
  const Period& middle = lead.periods[lead.periods.size() / 2];
  std::vector<TimelineBar> bars;
  for (const Track& track : workload.tracks) {
    const Process& process = run.processes[static_cast<std::size_t>(track.process)];
    for (const SpanNode& span : process.spans) {
      const bool rest = is_rest(kind_of(span.zone)) && span.zone != Zone::kPhaseCommunication;
      if (span.thread != track.thread || rest || span.end_ns <= middle.begin_ns || span.begin_ns >= middle.end_ns)
        continue;
      if (inside_communication(process, span)) continue;
      bars.push_back({.track = track.name,
                      .name = std::string(to_string(span.zone)),
                      .kind = is_matmul(span.zone) ? "matmul" : std::string(to_string(kind_of(span.zone))),
                      .begin_s = kSecond * static_cast<double>(std::max(span.begin_ns, middle.begin_ns)),
                      .end_s = kSecond * static_cast<double>(std::min(span.end_ns, middle.end_ns))});
    }
  }
  if (bars.size() > bars_max) {
    std::ranges::stable_sort(bars, std::greater{}, [](const TimelineBar& bar) { return bar.end_s - bar.begin_s; });
    bars.resize(bars_max);
  }
  std::ranges::stable_sort(bars, {}, &TimelineBar::begin_s);
  return bars;
}

}  // namespace butterfly::study
