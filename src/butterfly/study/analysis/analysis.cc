#include "butterfly/study/analysis/analysis.h"

#include <algorithm>
#include <map>
#include <set>

#include "butterfly/study/analysis/efficiency.h"
#include "butterfly/study/analysis/machine_use.h"
#include "butterfly/study/analysis/track_time.h"

namespace butterfly::study {
namespace {

/// A track that is this much busier than the mean is a straggler.
constexpr double kStraggler = 1.15;

/// By what each does for one step of the run.
void set_balance(const Workload& workload, WorkloadStudy& study) {
  double sum = 0.0, most = 0.0;
  int count = 0;
  std::string name;
  for (std::size_t i = 0; i < study.tracks.size(); ++i) {
    const TrackTime& track = study.tracks[i];
    if (track.scheduler || track.steps == 0) continue;
    const double busy = track.busy_s / track.steps * workload.tracks[i].steps_all;
    sum += busy;
    ++count;
    if (busy > most) {
      most = busy;
      name = track.name;
    }
  }
  if (count < 2 || sum <= 0.0) return;
  study.load_balance_factor = most * count / sum;
  if (study.load_balance_factor > kStraggler) study.straggler = name;
}

WorkloadStudy study_workload(const RecordedRun& run, const Workload& workload) {
  WorkloadStudy study{.kind = workload.kind, .selection = selection_sentence(workload.tracks[workload.lead])};
  for (const Track& track : workload.tracks) study.tracks.push_back(track_time(run, track));
  study.lead = workload.lead;
  study.step_s = study.tracks[study.lead].step_s;
  study.operators = operator_times(run, workload);
  for (const OperatorTime& one : study.operators) study.matmul_share += one.kind == "matmul" ? one.share : 0.0;
  study.projections_per_layer = projections_per_layer(run, workload);
  study.layers = layer_times(run, workload);
  study.efficiency = efficiency_of(run, workload);
  study.launches = launches_of(run, workload);
  study.allocations = allocations_of(run, workload);
  study.links = links_of(run, workload);
  study.wire = wire_of(run, workload);
  study.waits = waits_for(run, workload);
  if (const double wall_s = study.tracks[study.lead].wall_s; wall_s > 0.0) {
    study.on_the_way_share = seconds_on_the_way(run, workload) / wall_s;
  }
  study.timeline = timeline_of(run, workload);
  set_balance(workload, study);
  return study;
}

std::vector<double> step_seconds(const Workload& workload) {
  std::vector<double> seconds;
  for (const Period& period : workload.tracks[workload.lead].periods) {
    seconds.push_back(1e-9 * static_cast<double>(period.wall_ns()));
  }
  return seconds;
}

using StepsByKind = std::map<WorkKind, std::vector<std::vector<double>>>;

/// The repeat whose mean step of the first kind is in the middle.
std::size_t middle_repeat(const std::vector<std::vector<Workload>>& found) {
  std::vector<std::pair<double, std::size_t>> means;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].empty()) means.emplace_back(summarize(step_seconds(found[i].front())).mean, i);
  }
  std::ranges::sort(means);
  return means[(means.size() - 1) / 2].second;
}

std::vector<OtherTime> beside_steps(const RecordedRun& run) {
  std::vector<OtherTime> result;
  for (const Process& process : run.processes) {
    std::map<trace::Zone, double> sums;
    for (const SpanNode& span : process.spans) {
      const bool outermost =
          span.parent == kNoParent || process.spans[static_cast<std::size_t>(span.parent)].zone != span.zone;
      if (kind_of(span.zone) == trace::ZoneKind::kOther && outermost) {
        sums[span.zone] += 1e-9 * static_cast<double>(span.duration_ns());
      }
    }
    for (const auto& [zone, seconds] : sums) {
      result.push_back({.process = process.name, .name = std::string(to_string(zone)), .seconds = seconds});
    }
  }
  return result;
}

std::vector<std::string> notes_of(const RecordedRun& run, const Study& study) {
  std::vector<std::string> notes = run.warnings;
  for (const ProcessUse& process : study.processes) {
    if (process.lost > 0) {
      notes.push_back(fmt::format("{} lost {} of {} spans: its times are too small by what they held", process.name,
                                  process.lost, process.lost + process.spans));
    }
  }
  for (const WorkloadStudy& one : study.workloads) {
    if (one.step_s.blocks < 2) {
      notes.push_back(fmt::format("{}: {} measured step{} no interval; let the command run longer, or use --repeats",
                                  to_string(one.kind), one.step_s.count, one.step_s.count == 1 ? " gives" : "s give"));
    }
  }
  return notes;
}

}  // namespace

Result<Study> analyse(const std::vector<RecordedRun>& repeats, const StepSelection& selection) {
  std::vector<std::vector<Workload>> found;
  StepsByKind steps;
  for (const RecordedRun& run : repeats) {
    found.push_back(find_workloads(run, selection));
    for (const Workload& workload : found.back()) steps[workload.kind].push_back(step_seconds(workload));
  }
  if (steps.empty()) {
    std::size_t spans = 0;
    for (const RecordedRun& run : repeats) {
      for (const Process& process : run.processes) spans += process.spans.size();
    }
    return make_error(ErrorCode::kNotFound,
                      "the recordings have {} spans and no step: the command ended before it began one, or it has none",
                      spans);
  }
  const std::size_t middle = middle_repeat(found);
  const RecordedRun& run = repeats[middle];
  Study study{.repeats = static_cast<int>(repeats.size()), .wall_s = 1e-9 * static_cast<double>(run.end_ns())};
  if (!run.processes.empty()) study.facts = run.processes.front().facts;
  for (const Process& process : run.processes) {
    for (const auto& [name, value] : process.facts) {
      if (name.starts_with("model.")) study.facts.try_emplace(name, value);
    }
  }
  for (const Workload& workload : found[middle]) {
    study.workloads.push_back(study_workload(run, workload));
    study.workloads.back().step_s = summarize_repeats(steps[workload.kind]);
  }
  const Window window = window_of(run, found[middle]);
  study.memory = memory_of(run, window);
  study.processes = processes_of(run, window);
  study.beside = beside_steps(run);
  study.quality = quality_of(run, window);
  study.notes = notes_of(run, study);
  return study;
}

}  // namespace butterfly::study
