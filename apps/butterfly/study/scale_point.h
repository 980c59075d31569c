// One command of a scaling study, run once a round: how long its steps took, and how much surer or less sure than those
// of another.
#pragma once

#include <string>
#include <vector>

#include "butterfly/study/analysis/results.h"
#include "commands.h"

namespace butterfly::app {

struct ScalePoint {
  int size = 1;
  std::vector<study::Summary> steps{};  // of each round
  std::vector<double> exposed{};        // share of the step that is communication and waiting, each round
  double sent_bytes = 0.0;              // by collectives, each step and member; of the last round
  double held_bytes = 0.0;              // by Butterfly, each member, at the peak; of the last round
  double speedup = 1.0, least = 1.0, most = 1.0;
  double efficiency = 1.0;
  int cpus = 1;                               // that its members have together
  study::Trust trust = study::Trust::kQuiet;  // the worst round's

  bool shares_cpus() const { return cpus < size; }  // they take turns
  double efficiency_of_cpus() const { return efficiency * size / cpus; }
  double step_s() const;  // the median round's
};

struct ScaleRun {
  std::vector<std::string> words{};
  std::string folder{};
  int warmup = 3, measure = 50;
};

/// Adds a round to the point. Returns what was found, for who wants more of it. Errors: the command's.
Result<study::Study> run_round(const ScaleRun& run, ScalePoint& point);

/// Ratios within a round, so that what disturbs the machine for minutes meets both. From the least to the most that the
/// steps' 95 % intervals allow. `work`: what the point computes in a step over what `one` does.
void compare_rounds(const ScalePoint& one, double work, ScalePoint& point);

}  // namespace butterfly::app
