// Leaves out a step whose loss or gradient norm stands far above those of the last steps: a corrupt document, a rare
// burst. A function of the run's own numbers, so all ranks decide alike; its window is part of a checkpoint. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

class OutlierGuard {
 public:
  explicit OutlierGuard(const GuardConfig& config) : config_(config) {}

  /// Whether (value - mean) / deviation over the window is above the configured number of sigmas, for the loss or for
  /// the norm. Never before the window is full. Both enter the window in either case, so that what lasts stops being an
  /// outlier. Both must be finite.
  bool is_outlier(double loss, double gradient_norm);

  /// The window, oldest step first: loss, norm, loss, norm, ...; empty where the guard is off.
  std::vector<double> state() const;
  /// Errors: kBadData for an odd number of values, more than the window holds, or one that is not finite.
  Status set_state(std::span<const double> state);

 private:
  bool active() const { return config_.loss_sigmas > 0 || config_.gradient_sigmas > 0; }
  std::size_t window() const { return static_cast<std::size_t>(config_.window_steps); }

  GuardConfig config_;
  std::deque<double> losses_;
  std::deque<double> norms_;
};

}  // namespace butterfly
