// Whether the stages of a plan are as fast as it assumed. Compares the time that each stage's steps take with what was
// predicted, relative to the other stages, over windows of time; a straggler counts once it has shown in several
// windows in a row, so that a plan never follows noise. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/plan/partition/plan.h"

namespace butterfly {

struct StragglerOptions {
  std::chrono::milliseconds window{1000};  // at least, and until each stage has made this number of steps:
  std::uint64_t steps_min = 8;
  double threshold = 1.5;  // how much slower than predicted, relative to the others, is a straggler
  int windows = 3;         // in a row
};

class StragglerDetector {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StragglerDetector(const StragglerOptions& options = {}) : options_(options) {}

  /// Begins to watch a plan at work.
  void watch(const Plan& plan, Clock::time_point now);

  /// Looks at the counters of the node of each stage since their workers began. When a straggler is certain: for each
  /// stage how many times slower than predicted it is, the median stage being 1. Then it begins anew.
  std::optional<std::vector<double>> look(std::span<const StageWork> work, Clock::time_point now);

  /// The same for the window that is under way, certain or not, without ending it. Nothing while it has too few steps.
  std::optional<std::vector<double>> glance(std::span<const StageWork> work) const;

 private:
  std::optional<std::vector<double>> slowness_since(std::span<const StageWork> before,
                                                    std::span<const StageWork> work) const;

  const StragglerOptions options_;
  std::vector<double> predicted_s_;
  std::vector<StageWork> before_;
  Clock::time_point window_end_{};
  std::vector<std::vector<double>> seen_;  // slowness in the last windows that showed a straggler
};

}  // namespace butterfly
