#include "butterfly/study/analysis/samples.h"

#include <algorithm>

namespace butterfly::study {

Course::Course(const Process& process, trace::Zone zone, Adds adds) {
  for (const SpanNode& span : process.spans) {
    if (span.zone != zone) continue;
    sums_.emplace_back(span.end_ns, adds == Adds::kBytes ? static_cast<double>(span.work.bytes) : 1.0);
  }
  std::ranges::sort(sums_);
  double sum = 0.0;
  for (auto& [at_ns, amount] : sums_) amount = sum += amount;
}

double Course::until(std::uint64_t at_ns) const {
  const auto after = std::ranges::upper_bound(sums_, at_ns, {}, [](const auto& one) { return one.first; });
  return after == sums_.begin() ? 0.0 : (after - 1)->second;
}

double value_at(std::span<const trace::Sample> samples, std::uint64_t at_ns, const SampledValue& value,
                const Course& course) {
  if (samples.empty()) return 0.0;
  const auto after = std::ranges::lower_bound(samples, at_ns, {}, &trace::Sample::at_ns);
  if (after == samples.begin()) return value(samples.front());
  if (after == samples.end()) return value(samples.back());
  const trace::Sample& before = *(after - 1);
  const double known = course.until(before.at_ns);
  double between = course.until(after->at_ns) - known;
  double until = course.until(at_ns) - known;
  if (between <= 0.0) {
    between = static_cast<double>(after->at_ns - before.at_ns);
    until = static_cast<double>(at_ns - before.at_ns);
  }
  return value(before) + (between > 0.0 ? until / between : 0.0) * (value(*after) - value(before));
}

double growth_between(std::span<const trace::Sample> samples, std::uint64_t begin_ns, std::uint64_t end_ns,
                      const SampledValue& value, const Course& course) {
  return std::max(0.0, value_at(samples, end_ns, value, course) - value_at(samples, begin_ns, value, course));
}

SampledValue counter(trace::Counter which) {
  return [which](const trace::Sample& sample) {
    return static_cast<double>(sample.counters[static_cast<std::size_t>(which)]);
  };
}

}  // namespace butterfly::study
