#include "butterfly/train/gradients/guard.h"

#include <cmath>

namespace butterfly {
namespace {

/// Computed anew each time, in order: an incremental sum would remember what left the window.
bool stands_out(const std::deque<double>& window, double value, double sigmas) {
  if (sigmas <= 0) return false;
  double sum = 0.0, squares = 0.0;
  for (const double seen : window) sum += seen;
  const double mean = sum / static_cast<double>(window.size());
  for (const double seen : window) squares += (seen - mean) * (seen - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(window.size()));
  return deviation > 0 && (value - mean) / deviation > sigmas;
}

}  // namespace

bool OutlierGuard::is_outlier(double loss, double gradient_norm) {
  if (!active()) return false;
  const bool full = losses_.size() >= window();
  const bool outlier = full && (stands_out(losses_, loss, config_.loss_sigmas) ||
                                stands_out(norms_, gradient_norm, config_.gradient_sigmas));
  if (full) {
    losses_.pop_front();
    norms_.pop_front();
  }
  losses_.push_back(loss);
  norms_.push_back(gradient_norm);
  return outlier;
}

std::vector<double> OutlierGuard::state() const {
  std::vector<double> values;
  for (std::size_t i = 0; i < losses_.size(); ++i) values.insert(values.end(), {losses_[i], norms_[i]});
  return values;
}

Status OutlierGuard::set_state(std::span<const double> state) {
  if (state.size() % 2 != 0 || state.size() / 2 > window()) {
    return make_error(ErrorCode::kBadData, "the outlier guard's window holds {} steps, the saved one has {} values",
                      window(), state.size());
  }
  for (const double value : state) {
    if (!std::isfinite(value))
      return make_error(ErrorCode::kBadData, "the outlier guard's saved window holds {}", value);
  }
  losses_.clear();
  norms_.clear();
  for (std::size_t i = 0; active() && i < state.size(); i += 2) {
    losses_.push_back(state[i]);
    norms_.push_back(state[i + 1]);
  }
  return {};
}

}  // namespace butterfly
