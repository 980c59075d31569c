#include "butterfly/study/analysis/efficiency.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "butterfly/study/analysis/roof.h"
#include "butterfly/study/analysis/samples.h"
#include "butterfly/study/analysis/track_time.h"

namespace butterfly::study {
namespace {

using trace::Counter;
using trace::Zone;

const Process& process_of(const RecordedRun& run, const Track& track) {
  return run.processes[static_cast<std::size_t>(track.process)];
}

/// Of each process the track that stands for it: the one with most steps that is no scheduler.
std::vector<const Track*> one_of_each_process(const Workload& workload) {
  std::map<int, const Track*> found;
  for (const Track& track : workload.tracks) {
    const auto key = [](const Track& t) { return std::pair(!t.scheduler, t.range_steps); };
    const Track*& best = found[track.process];
    if (best == nullptr || key(track) > key(*best)) best = &track;
  }
  std::vector<const Track*> result;
  for (const auto& [process, track] : found) result.push_back(track);
  return result;
}

/// How much a sum of a process grew in its range of steps, per step.
double per_step(const RecordedRun& run, const Track& track, const SampledValue& value, const Course& course = {}) {
  if (track.range_steps < 1) return 0.0;
  const Process& process = process_of(run, track);
  return growth_between(process.samples, track.range_begin_ns, track.range_end_ns, value, course) / track.range_steps;
}

/// A process's steps, where others take theirs at another pace, in steps of the lead track.
double steps_of_lead(const Workload& workload, const Track& track) {
  const Track& lead = workload.tracks[workload.lead];
  const double own_s = static_cast<double>(track.range_end_ns - track.range_begin_ns) / std::max(track.range_steps, 1);
  const double lead_s = static_cast<double>(lead.range_end_ns - lead.range_begin_ns) / std::max(lead.range_steps, 1);
  return own_s > 0.0 && lead_s > 0.0 ? lead_s / own_s : 1.0;
}

struct Rates {
  double flops = 0.0, recomputed = 0.0, bytes = 0.0, tokens = 0.0;  // each second
  std::map<std::string, double> flops_by_type;
};

double step_seconds_of(const Track& track) {
  return track.wall_s() / static_cast<double>(track.periods.size());
}

/// A track may take several steps for one of the lead's, and may rest meanwhile.
void add_rates(const RecordedRun& run, const Track& track, const Track& lead, Rates& rates, double& rows_per_s) {
  const double ratio = static_cast<double>(track.steps_all) / static_cast<double>(lead.steps_all);
  const double measured_s = step_seconds_of(lead) * static_cast<double>(track.periods.size()) / ratio;
  if (measured_s <= 0.0) return;
  double rows = 0.0;
  each_measured_span(process_of(run, track), track, [&](const SpanNode& span, std::uint64_t) {
    if (kind_of(span.zone) == trace::ZoneKind::kStep && span.zone != Zone::kStepTurn) rows += span.work.number;
    if (kind_of(span.zone) != trace::ZoneKind::kOperation) return;
    const double flops = static_cast<double>(span.work.flops) / measured_s;
    rates.flops += flops;
    rates.flops_by_type[type_name(span.work.type)] += flops;
    rates.bytes += static_cast<double>(span.work.bytes) / measured_s;
    if (span.work.pass == trace::Pass::kRecompute) rates.recomputed += flops;
  });
  if (!track.scheduler) rows_per_s = std::max(rows_per_s, rows / measured_s);
}

/// Facts about the model are the same wherever they are known.
double known_number(const RecordedRun& run, const char* name) {
  for (const Process& process : run.processes) {
    if (const double value = process.number(name); value > 0.0) return value;
  }
  return 0.0;
}

/// Training counts its tokens; a stage's step has them as rows, and every stage has the same.
Rates rates_of(const RecordedRun& run, const Workload& workload) {
  Rates rates;
  double rows_per_s = 0.0;
  const Track& lead = workload.tracks[workload.lead];
  for (const Track& track : workload.tracks) add_rates(run, track, lead, rates, rows_per_s);
  rates.tokens = rows_per_s;
  if (workload.kind != WorkKind::kTrain) return rates;
  rates.tokens = 0.0;
  for (const Track* track : one_of_each_process(workload)) {
    const double seconds = 1e-9 * static_cast<double>(track->range_end_ns - track->range_begin_ns);
    const Course steps(process_of(run, *track), Zone::kStepTrain, Course::Adds::kOne);
    const double tokens = per_step(run, *track, counter(Counter::kTrainTokens), steps) * track->range_steps;
    if (seconds > 0.0) rates.tokens += tokens / seconds;
  }
  if (rates.tokens <= 0.0 && lead.wall_s() > 0.0) {  // nobody counted: a step is one global batch
    const double tokens = known_number(run, "train.global_batch") * known_number(run, "train.seq");
    rates.tokens = tokens * static_cast<double>(lead.periods.size()) / lead.wall_s();
  }
  return rates;
}

std::string type_of_most(const std::map<std::string, double>& flops_by_type) {
  const auto found = std::ranges::max_element(flops_by_type, {}, [](const auto& one) { return one.second; });
  return found == flops_by_type.end() ? std::string() : found->first;
}

/// The quarter of the operations that is shortest takes at most so long: handing out their work takes less.
double short_operation_us(const Process& process, const Track& track) {
  std::vector<double> times;
  each_measured_span(process, track, [&times](const SpanNode& span, std::uint64_t) {
    if (is_matmul(span.zone)) times.push_back(1e-3 * static_cast<double>(span.duration_ns()));
  });
  if (times.empty()) return std::numeric_limits<double>::max();
  const auto quarter = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
  std::ranges::nth_element(times, quarter);
  return *quarter;
}

}  // namespace

Efficiency efficiency_of(const RecordedRun& run, const Workload& workload) {
  const Rates rates = rates_of(run, workload);
  const Track& lead = workload.tracks[workload.lead];
  const double step_s = step_seconds_of(lead);
  Efficiency found{.type = type_of_most(rates.flops_by_type),
                   .flops_per_step = rates.flops * step_s,
                   .recomputed_per_step = rates.recomputed * step_s,
                   .bytes_per_step = rates.bytes * step_s,
                   .tokens_per_step = rates.tokens * step_s,
                   .flops_per_s = rates.flops,
                   .gb_per_s = 1e-9 * rates.bytes};
  found.parameters = known_number(run, "model.active_parameters");
  if (found.parameters <= 0.0) found.parameters = known_number(run, "model.parameters");
  const double model_flops_per_s = rates.flops - rates.recomputed;
  if (found.parameters > 0.0 && rates.tokens > 0.0) {
    found.flops_per_parameter_token = model_flops_per_s / rates.tokens / found.parameters;
  }
  for (const Track* track : one_of_each_process(workload)) {
    if (track->scheduler && workload.tracks.size() > 1) continue;  // its process computes no layers
    const Roof roof = roof_of(process_of(run, *track), found.type);
    found.peak_flops += roof.flops_per_s;
    found.peak_gb_per_s += 1e-9 * roof.bytes_per_s;
    for (std::size_t level = 0; level < kCacheLevels; ++level) {
      found.cache_gb_per_s[level] += 1e-9 * roof.cache_bytes_per_s[level];
    }
  }
  if (found.peak_flops > 0.0) {
    found.mfu = model_flops_per_s / found.peak_flops;
    found.hfu = rates.flops / found.peak_flops;
  }
  if (rates.bytes > 0.0) found.intensity = rates.flops / rates.bytes;
  if (found.peak_gb_per_s > 0.0) {
    found.bandwidth_share = found.gb_per_s / found.peak_gb_per_s;
    found.ridge = 1e-9 * found.peak_flops / found.peak_gb_per_s;
    found.memory_bound = found.intensity > 0.0 && found.intensity < found.ridge;
  }
  return found;
}

std::string mfu_band(double mfu) {
  if (mfu < 0.2) return "under 20 %";
  if (mfu < 0.4) return "20 to 40 %";
  return mfu <= 0.6 ? "40 to 60 %" : "over 60 %";
}

Launches launches_of(const RecordedRun& run, const Workload& workload) {
  Launches found;
  double most_s = 0.0;
  for (const Track* track : one_of_each_process(workload)) {
    const double part = steps_of_lead(workload, *track);
    const double runs = part * per_step(run, *track, counter(Counter::kTeamRuns));
    const double wakes = part * per_step(run, *track, counter(Counter::kTeamWakes));
    const Process& process = process_of(run, *track);
    const double dispatch_us = process.number("team.dispatch_us");
    found.per_step += runs;
    found.wakes_per_step += wakes;
    found.cost_known = found.cost_known || dispatch_us > 0.0 || process.number("threads") == 1.0;
    // Measured while others had the CPUs, it can be more than an operation of this run took.
    const double most_us = short_operation_us(process, *track);
    const double run_us = std::min(dispatch_us, most_us);
    const double wake_us = std::min(process.number("team.wake_us"), most_us);
    most_s = std::max(most_s, 1e-6 * (runs * run_us + wakes * wake_us));
  }
  const Track& lead = workload.tracks[workload.lead];
  const double step_s = lead.wall_s() / static_cast<double>(lead.periods.size());
  most_s = std::min(most_s, step_s);
  found.seconds_per_step = most_s;  // processes hand out work side by side
  if (step_s > 0.0) found.share = most_s / step_s;
  return found;
}

Allocations allocations_of(const RecordedRun& run, const Workload& workload) {
  Allocations found;
  for (const Track* track : one_of_each_process(workload)) {
    const double part = steps_of_lead(workload, *track);
    const double pool = part * per_step(run, *track, counter(Counter::kTensorPoolAllocations));
    const double hits = part * per_step(run, *track, counter(Counter::kTensorPoolHits));
    found.pool_per_step += pool;
    found.pool_misses_per_step += std::max(0.0, pool - hits);
    found.faults_per_step += part * per_step(run, *track, [](const trace::Sample& sample) {
                               return static_cast<double>(sample.minor_faults);
                             });
    found.system_s_per_step += 1e-9 * part * per_step(run, *track, [](const trace::Sample& sample) {
                                 return static_cast<double>(sample.system_ns);
                               });
  }
  return found;
}

namespace {

/// Waits count for each communication that they are inside of.
void add_waits(const std::vector<SpanNode>& spans, const SpanNode& wait, std::map<Zone, LinkUse>& found) {
  for (int at = wait.parent; at != kNoParent; at = spans[static_cast<std::size_t>(at)].parent) {
    const Zone zone = spans[static_cast<std::size_t>(at)].zone;
    if (kind_of(zone) == trace::ZoneKind::kCommunication) {
      found[zone].wait_s += 1e-9 * static_cast<double>(wait.duration_ns());
    }
  }
}

}  // namespace

std::vector<LinkUse> links_of(const RecordedRun& run, const Workload& workload) {
  std::vector<LinkUse> result;
  for (const Track* track : one_of_each_process(workload)) {
    const Process& process = process_of(run, *track);
    const std::uint64_t begin_ns = track->periods.front().begin_ns, end_ns = track->periods.back().end_ns;
    std::map<Zone, LinkUse> found;
    for (const SpanNode& span : process.spans) {
      if (span.begin_ns < begin_ns || span.begin_ns >= end_ns) continue;
      if (kind_of(span.zone) == trace::ZoneKind::kWait) add_waits(process.spans, span, found);
      if (kind_of(span.zone) != trace::ZoneKind::kCommunication) continue;
      LinkUse& link = found[span.zone];
      ++link.messages;
      link.seconds += 1e-9 * static_cast<double>(span.duration_ns());
      link.bytes += static_cast<double>(span.work.bytes);
    }
    const double ranks = process.number("ranks");
    for (auto& [zone, link] : found) {
      if (link.messages == 0) continue;  // a wait inside of one that began before
      link.process = process.name;
      link.name = to_string(zone);
      if (link.seconds > 0.0) link.gb_per_s = 1e-9 * link.bytes / link.seconds;
      // What passes over each link of a ring, by byte of the result.
      const double around = ranks > 1.0 ? (ranks - 1.0) / ranks : 0.0;
      if (zone == Zone::kAllReduce) link.bus_gb_per_s = 2.0 * around * link.gb_per_s;
      if (zone == Zone::kAllGather || zone == Zone::kReduceScatter) link.bus_gb_per_s = around * link.gb_per_s;
      result.push_back(link);
    }
  }
  return result;
}

std::vector<WireUse> wire_of(const RecordedRun& run, const Workload& workload) {
  std::vector<WireUse> result;
  for (const Track* track : one_of_each_process(workload)) {
    const Process& process = process_of(run, *track);
    const Course sent(process, Zone::kSend, Course::Adds::kBytes), messages(process, Zone::kSend, Course::Adds::kOne);
    const Course received(process, Zone::kReceive, Course::Adds::kBytes);
    const WireUse use{.process = process.name,
                      .sent_per_step = per_step(run, *track, counter(Counter::kWireBytesSent), sent),
                      .received_per_step = per_step(run, *track, counter(Counter::kWireBytesReceived), received),
                      .messages_per_step = per_step(run, *track, counter(Counter::kWireMessagesSent), messages),
                      .saved_per_step = per_step(run, *track, counter(Counter::kWireBytesSaved), messages)};
    if (use.sent_per_step + use.received_per_step > 0.0) result.push_back(use);
  }
  return result;
}

}  // namespace butterfly::study
