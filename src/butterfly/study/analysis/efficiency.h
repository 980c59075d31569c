// FLOPs, bytes, utilisation, launches, allocations and links of the measured steps. Pure functions of a run.
#pragma once

#include <vector>

#include "butterfly/study/analysis/results.h"

namespace butterfly::study {

/// Rates of all tracks together against the peaks of all their processes. MFU leaves out what was computed again.
Efficiency efficiency_of(const RecordedRun& run, const Workload& workload);

Launches launches_of(const RecordedRun& run, const Workload& workload);
Allocations allocations_of(const RecordedRun& run, const Workload& workload);

/// Communication by process and zone, on any thread while the process's steps ran.
std::vector<LinkUse> links_of(const RecordedRun& run, const Workload& workload);
std::vector<WireUse> wire_of(const RecordedRun& run, const Workload& workload);

}  // namespace butterfly::study
