// Which steps a study measures: each kind of step apart, without its first ones. Plain data, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/study/analysis/summary.h"
#include "butterfly/study/read/recorded_run.h"

namespace butterfly::study {

enum class WorkKind : std::uint8_t { kTrain, kPrefill, kDecode, kMixed, kEncode };
std::string_view to_string(WorkKind kind);

struct StepSelection {
  int warmup = 10;
  int measure = 50;
};

/// One step with what follows on its thread until the next one of its kind; where another kind comes next, or nothing,
/// it ends with the step.
struct Period {
  int step = 0;  // in Process::spans
  std::uint64_t begin_ns = 0, end_ns = 0;

  std::uint64_t wall_ns() const { return end_ns - begin_ns; }
};

/// The steps of one kind on one thread: a rank, a stage, the scheduler.
struct Track {
  int process = 0;
  std::uint32_t thread = 0;
  bool scheduler = false;
  std::string name;
  int steps_all = 0;
  int skipped = 0;  // at the beginning
  std::vector<Period> periods;
  /// The longest range of steps after the first ones, with none of another kind between: for what is sampled.
  std::uint64_t range_begin_ns = 0, range_end_ns = 0;
  int range_steps = 0;

  double wall_s() const;
};

struct Workload {
  WorkKind kind = WorkKind::kTrain;
  std::vector<Track> tracks;
  std::size_t lead = 0;  // whose steps are the run's: the scheduler, else the one with most steps
};

/// In the order of WorkKind; kinds without a step are left out.
std::vector<Workload> find_workloads(const RecordedRun& run, const StepSelection& selection);

/// "50 of 128 steps after 10 that were dropped".
std::string selection_sentence(const Track& track);

}  // namespace butterfly::study
