#include "butterfly/infer/deployment/straggler.h"

#include <algorithm>
#include <cmath>

#include "butterfly/base/statistics.h"

namespace butterfly {
namespace {

bool enough_steps(std::span<const StageWork> before, std::span<const StageWork> work, std::uint64_t steps) {
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (work[i].steps - before[i].steps < steps) return false;
  }
  return true;
}

}  // namespace

void StragglerDetector::watch(const Plan& plan, Clock::time_point now) {
  predicted_s_.clear();
  // A node with several stages counts all their steps together: what it shows is the mean of them.
  for (const PlannedShare& share : plan.shares) {
    double sum_s = 0;
    int stages = 0;
    for (const PlannedShare& other : plan.shares) {
      if (other.node != share.node) continue;
      sum_s += other.prediction.decode_s;
      ++stages;
    }
    predicted_s_.push_back(sum_s / stages);
  }
  before_.clear();
  seen_.clear();
  window_end_ = now + options_.window;
}

std::optional<std::vector<double>> StragglerDetector::look(std::span<const StageWork> work, Clock::time_point now) {
  if (predicted_s_.size() < 2 || work.size() != predicted_s_.size() || now < window_end_) return std::nullopt;
  if (before_.empty()) {
    before_.assign(work.begin(), work.end());
    window_end_ = now + options_.window;
    return std::nullopt;
  }
  if (!enough_steps(before_, work, options_.steps_min)) return std::nullopt;
  window_end_ = now + options_.window;
  const std::vector<StageWork> before = std::exchange(before_, {work.begin(), work.end()});
  const auto measured = slowness_since(before, work);
  if (!measured) return std::nullopt;
  const std::vector<double>& slowness = *measured;
  if (*std::ranges::max_element(slowness) < options_.threshold) {
    seen_.clear();
    return std::nullopt;
  }
  seen_.push_back(slowness);
  if (static_cast<int>(seen_.size()) < options_.windows) return std::nullopt;
  std::vector<double> typical;
  for (std::size_t i = 0; i < work.size(); ++i) {
    std::vector<double> of_stage;
    for (const auto& window : seen_) of_stage.push_back(window[i]);
    typical.push_back(median(std::move(of_stage)));
  }
  seen_.clear();
  return typical;
}

std::optional<std::vector<double>> StragglerDetector::glance(std::span<const StageWork> work) const {
  if (work.size() != before_.size() || !enough_steps(before_, work, options_.steps_min)) return std::nullopt;
  return slowness_since(before_, work);
}

std::optional<std::vector<double>> StragglerDetector::slowness_since(std::span<const StageWork> before,
                                                                     std::span<const StageWork> work) const {
  std::vector<double> slowness;
  for (std::size_t i = 0; i < work.size(); ++i) {
    const std::uint64_t steps = work[i].steps - before[i].steps;
    const double busy_s = static_cast<double>(work[i].busy_ns - before[i].busy_ns) * 1e-9;
    if (!std::isfinite(predicted_s_[i]) || predicted_s_[i] <= 0) return std::nullopt;
    slowness.push_back(busy_s / static_cast<double>(steps) / predicted_s_[i]);
  }
  // Against the others: how far all are from the prediction says nothing about how to share the work.
  const double usual = median(slowness);
  if (usual <= 0) return std::nullopt;
  for (double& one : slowness) one /= usual;
  return slowness;
}

}  // namespace butterfly
