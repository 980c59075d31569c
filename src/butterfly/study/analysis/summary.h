// Repeated measurements in a few numbers. Thread-safe.
#pragma once

#include <span>
#include <vector>

namespace butterfly::study {

struct Summary {
  int count = 0;
  double mean = 0.0;
  double median = 0.0;
  double deviation = 0.0;  // of single values
  double least = 0.0, most = 0.0;
  /// Half the width of the interval that holds the mean of all such runs in 95 of 100 cases; 0: too few blocks.
  double half_width = 0.0;
  int blocks = 0;

  double low() const { return mean - half_width; }
  double high() const { return mean + half_width; }
  /// Half the width as a share of the mean.
  double relative() const { return mean > 0.0 ? half_width / mean : 0.0; }
};

/// Half the width of a 95 % interval of Student's distribution, in standard errors.
double student_95(int degrees_of_freedom);

/// The interval is of the means of `blocks` neighbouring runs of values, because neighbours are alike.
Summary summarize(std::span<const double> values, int blocks = 5);

/// The interval is of the means of whole repeats.
Summary summarize_repeats(const std::vector<std::vector<double>>& repeats);

}  // namespace butterfly::study
