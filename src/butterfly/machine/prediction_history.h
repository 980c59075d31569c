// How well earlier predictions of a kind held on this machine, from which the interval of the next one comes. Kept
// where measurements are; without a cache every run begins anew. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/machine/measurement_cache.h"

namespace butterfly {

/// Both ends, in the unit of the prediction.
struct Interval {
  double low = 0.0;
  double high = 0.0;

  bool holds(double value) const { return low <= value && value <= high; }
};

/// An interval that is wider says nothing.
inline constexpr double kWidestInterval = 0.60;

/// Half of the interval's width, as a share of what was predicted.
double half_width(const Interval& interval, double predicted);

class PredictionHistory {
 public:
  /// `kind` names what is predicted, "decode": others say nothing about it.
  static PredictionHistory open(std::string_view kind);

  explicit PredictionHistory(std::vector<double> ratios) : ratios_(std::move(ratios)) {}

  /// In which nine of ten measured times lie: the middle of earlier ratios of measured to predicted time, or +-18 %
  /// where there are few. A time is longer by what the process had to wait: `disturbed` is the share of the CPU time
  /// that it wanted and did not get, 0 to 1.
  Interval of_time(double predicted_s, double disturbed) const;
  /// The same of a rate, which falls where times rise.
  Interval of_rate(double predicted_per_s, double disturbed) const;

  /// A run that was disturbed says nothing, nor do times or rates of 0.
  void add_time(double predicted_s, double measured_s, double disturbed);
  void add_rate(double predicted_per_s, double measured_per_s, double disturbed) {
    add_time(measured_per_s, predicted_per_s, disturbed);
  }

  const std::vector<double>& ratios() const { return ratios_; }

 private:
  Interval of_ratio(double disturbed) const;

  std::vector<double> ratios_;  // measured over predicted time, the latest last
  std::optional<MeasurementCache> cache_;
};

}  // namespace butterfly
