// Where the time of the measured steps goes: phases, operations, layers, who waits for whom. Pure functions of a run.
#pragma once

#include <vector>

#include "butterfly/study/analysis/results.h"

namespace butterfly::study {

/// Every moment of the track's periods is in exactly one phase: the phases of its steps, exposed communication, each
/// kind of wait, idle.
TrackTime track_time(const RecordedRun& run, const Track& track);

/// Operations, communication and waits of all tracks, by time of their own.
std::vector<OperatorTime> operator_times(const RecordedRun& run, const Workload& workload);

/// By layer.
std::vector<LayerTime> layer_times(const RecordedRun& run, const Workload& workload);

/// The most separate matmuls for queries, keys and values that one layer runs forward.
int projections_per_layer(const RecordedRun& run, const Workload& workload);

/// The three longest of each waiter.
std::vector<WaitFor> waits_for(const RecordedRun& run, const Workload& workload);

/// Of the scheduler's waits, the time in which nothing that was recorded computed: messages were on their way. 0 where
/// another track leads.
double seconds_on_the_way(const RecordedRun& run, const Workload& workload);

/// One step of the lead track, from the middle of those measured, and what all tracks did meanwhile: at most
/// `bars_max` spans, the longest.
std::vector<TimelineBar> timeline_of(const RecordedRun& run, const Workload& workload, std::size_t bars_max = 600);

/// The step of a stage that runs on the scheduler's thread.
inline bool is_stage_of(const Track& scheduler, const SpanNode& span) {
  return scheduler.scheduler && span.zone != trace::Zone::kStepTurn &&
         trace::kind_of(span.zone) == trace::ZoneKind::kStep;
}

/// Calls `visit(span, wall nanoseconds of its own)` for each span that begins in the track's periods, by time. Where
/// the scheduler's thread runs a stage, too, that one's step is one span without what is inside: it is of another
/// track.
template <typename Visit>
void each_measured_span(const Process& process, const Track& track, const Visit& visit) {
  const std::vector<SpanNode>& spans = process.spans;
  for (const Period& period : track.periods) {
    std::uint64_t stage_until_ns = 0;
    for (auto i = static_cast<std::size_t>(period.step);
         i < spans.size() && spans[i].thread == track.thread && spans[i].begin_ns <= period.end_ns; ++i) {
      const SpanNode& span = spans[i];
      if (span.begin_ns >= period.end_ns && period.end_ns > period.begin_ns) break;
      const std::uint64_t left_ns = period.end_ns - span.begin_ns;
      if (track.scheduler && span.begin_ns < stage_until_ns) continue;
      if (is_stage_of(track, span)) {
        stage_until_ns = span.end_ns;
        visit(span, std::min(span.duration_ns(), left_ns));
      } else {
        visit(span, std::min(span.own_ns(), left_ns));
      }
    }
  }
}

}  // namespace butterfly::study
