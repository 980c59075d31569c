#include "butterfly/machine/prediction_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace butterfly {
namespace {

constexpr std::size_t kKept = 60;
/// From this number on, the range of nine of ten is known by them alone.
constexpr std::size_t kEnough = 20;
constexpr double kAssumed = 0.18;  // of few, half the width
constexpr double kLeast = 0.06;    // what equal runs differ by anyway
constexpr double kQuiet = 0.10;
constexpr double kMostDisturbed = 0.9;

/// Between two of them where it lies there.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto before = static_cast<std::size_t>(at);
  const std::size_t after = std::min(before + 1, sorted.size() - 1);
  return sorted[before] + (at - static_cast<double>(before)) * (sorted[after] - sorted[before]);
}

bool is_time(double value) {
  return std::isfinite(value) && value > 0.0;
}

}  // namespace

double half_width(const Interval& interval, double predicted) {
  return predicted > 0.0 ? (interval.high - interval.low) / 2.0 / predicted : 0.0;
}

PredictionHistory PredictionHistory::open(std::string_view kind) {
  PredictionHistory history({});
  history.cache_ = MeasurementCache::open("predictions", kind);
  if (!history.cache_) return history;
  std::istringstream text(history.cache_->load());
  for (double ratio = 0.0; text >> ratio;) {
    if (is_time(ratio)) history.ratios_.push_back(ratio);
  }
  return history;
}

Interval PredictionHistory::of_ratio(double disturbed) const {
  std::vector<double> sorted = ratios_;
  std::ranges::sort(sorted);
  Interval ratio{1.0 - kAssumed, 1.0 + kAssumed};
  if (sorted.size() >= kEnough) {
    ratio = {quantile(sorted, 0.03), quantile(sorted, 0.97)};
  } else if (!sorted.empty()) {
    ratio = {std::min(ratio.low, sorted.front()), std::max(ratio.high, sorted.back())};
  }
  const double widen = std::max(0.0, kLeast - (ratio.high - ratio.low) / 2.0);
  const double got = 1.0 - std::clamp(disturbed, 0.0, kMostDisturbed);
  return {ratio.low - widen, (ratio.high + widen) / got};
}

Interval PredictionHistory::of_time(double predicted_s, double disturbed) const {
  const Interval ratio = of_ratio(disturbed);
  return {predicted_s * ratio.low, predicted_s * ratio.high};
}

Interval PredictionHistory::of_rate(double predicted_per_s, double disturbed) const {
  const Interval ratio = of_ratio(disturbed);
  return {predicted_per_s / ratio.high, predicted_per_s / ratio.low};
}

void PredictionHistory::add_time(double predicted_s, double measured_s, double disturbed) {
  if (!is_time(predicted_s) || !is_time(measured_s) || disturbed > kQuiet) return;
  ratios_.push_back(measured_s / predicted_s);
  if (ratios_.size() > kKept) ratios_.erase(ratios_.begin());
  if (!cache_) return;
  const MeasurementCache::Lock lock = cache_->lock();
  std::string text;
  for (const double ratio : ratios_) text += fmt::format("{:.6g}\n", ratio);
  cache_->store(text);
}

}  // namespace butterfly
