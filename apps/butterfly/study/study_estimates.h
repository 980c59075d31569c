// What the cost model says of the collectives that a run recorded, beside what they took.
#pragma once

#include "butterfly/study/analysis/results.h"
#include "butterfly/study/read/recorded_run.h"

namespace butterfly::app {

/// Between ranks, as the command line says; 0: it does not.
struct LinkSpeed {
  double latency_us = 0.0, gbit_per_s = 0.0;
};

/// Sets LinkUse::estimate_s of every collective, and what links it was estimated with: those that were said, else the
/// memory of the machine where all ranks are on one, else kAssumedLink.
void add_estimates(const study::RecordedRun& run, const LinkSpeed& said, study::Study& result);

}  // namespace butterfly::app
