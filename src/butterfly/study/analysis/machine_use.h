// What processes and their machines used while steps ran, and whether others disturbed them. Pure functions of a run.
#pragma once

#include <vector>

#include "butterfly/study/analysis/results.h"

namespace butterfly::study {

/// From the first measured step to the last one's end; the whole run where none was measured.
struct Window {
  std::uint64_t begin_ns = 0, end_ns = 0;

  double seconds() const { return 1e-9 * static_cast<double>(end_ns - begin_ns); }
};
Window window_of(const RecordedRun& run, const std::vector<Workload>& workloads);

std::vector<MemoryUse> memory_of(const RecordedRun& run, const Window& window);
std::vector<ProcessUse> processes_of(const RecordedRun& run, const Window& window);

/// From here on a result is disturbed, and from there on inconclusive.
struct TrustLimits {
  double stolen_disturbed = 0.02, stolen_inconclusive = 0.15;
  /// CPUs that other programs used, as a share of the machine's. They count where our threads waited for a CPU, too.
  double foreign_disturbed = 0.10, foreign_inconclusive = 0.25;
  double run_queue_disturbed = 0.05, run_queue_inconclusive = 0.15;
  double slowdown_disturbed = 0.10, slowdown_inconclusive = 0.40;
};
Quality quality_of(const RecordedRun& run, const Window& window, const TrustLimits& limits = {});

}  // namespace butterfly::study
