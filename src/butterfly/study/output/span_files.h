// All spans of a run, for other tools. Pure functions.
#pragma once

#include <string>

#include "butterfly/study/read/recorded_run.h"

namespace butterfly::study {

/// Trace Event Format, as chrome://tracing and Perfetto read it: complete events of all processes on one clock, and
/// counters of memory.
std::string trace_events_json(const RecordedRun& run);

/// "process;train_step;forward;qkv 1234" with nanoseconds of its own: for flame graphs.
std::string folded_stacks(const RecordedRun& run);

}  // namespace butterfly::study
