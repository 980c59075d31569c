#include "butterfly/study/analysis/summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "butterfly/base/statistics.h"

namespace butterfly::study {
namespace {

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values, double mean) {
  if (values.size() < 2) return 0.0;
  double sum = 0.0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

void set_interval(Summary& summary, std::span<const double> means) {
  summary.blocks = static_cast<int>(means.size());
  if (means.size() < 2) return;
  const double error = deviation_of(means, mean_of(means)) / std::sqrt(static_cast<double>(means.size()));
  summary.half_width = student_95(summary.blocks - 1) * error;
}

Summary without_interval(std::span<const double> values) {
  Summary summary;
  if (values.empty()) return summary;
  summary.count = static_cast<int>(values.size());
  summary.mean = mean_of(values);
  summary.median = median(std::vector<double>(values.begin(), values.end()));
  summary.deviation = deviation_of(values, summary.mean);
  const auto [least, most] = std::ranges::minmax(values);
  summary.least = least;
  summary.most = most;
  return summary;
}

}  // namespace

double student_95(int degrees_of_freedom) {
  constexpr std::array kQuantiles{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                  2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  if (degrees_of_freedom < 1) return 0.0;
  const auto at = static_cast<std::size_t>(degrees_of_freedom - 1);
  // Beyond the table the first terms of the expansion about the normal distribution.
  return at < kQuantiles.size() ? kQuantiles[at] : 1.960 + 2.37 / degrees_of_freedom;
}

Summary summarize(std::span<const double> values, int blocks) {
  Summary summary = without_interval(values);
  const auto count = std::min(static_cast<std::size_t>(std::max(blocks, 0)), values.size() / 2);
  std::vector<double> means;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * values.size() / count, end = (i + 1) * values.size() / count;
    means.push_back(mean_of(values.subspan(begin, end - begin)));
  }
  set_interval(summary, means);
  return summary;
}

Summary summarize_repeats(const std::vector<std::vector<double>>& repeats) {
  if (repeats.size() == 1) return summarize(repeats.front());
  std::vector<double> all, means;
  for (const std::vector<double>& repeat : repeats) {
    if (repeat.empty()) continue;
    all.insert(all.end(), repeat.begin(), repeat.end());
    means.push_back(mean_of(repeat));
  }
  Summary summary = without_interval(all);
  set_interval(summary, means);
  return summary;
}

}  // namespace butterfly::study
