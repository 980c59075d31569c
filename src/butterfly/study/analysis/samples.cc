#include "butterfly/study/analysis/samples.h"

#include <algorithm>

namespace butterfly::study {

double value_at(std::span<const trace::Sample> samples, std::uint64_t at_ns, const SampledValue& value) {
  if (samples.empty()) return 0.0;
  const auto after = std::ranges::lower_bound(samples, at_ns, {}, &trace::Sample::at_ns);
  if (after == samples.begin()) return value(samples.front());
  if (after == samples.end()) return value(samples.back());
  const trace::Sample& before = *(after - 1);
  const double between = static_cast<double>(after->at_ns - before.at_ns);
  const double part = between > 0.0 ? static_cast<double>(at_ns - before.at_ns) / between : 0.0;
  return value(before) + part * (value(*after) - value(before));
}

double growth_between(std::span<const trace::Sample> samples, std::uint64_t begin_ns, std::uint64_t end_ns,
                      const SampledValue& value) {
  return std::max(0.0, value_at(samples, end_ns, value) - value_at(samples, begin_ns, value));
}

SampledValue counter(trace::Counter which) {
  return [which](const trace::Sample& sample) {
    return static_cast<double>(sample.counters[static_cast<std::size_t>(which)]);
  };
}

}  // namespace butterfly::study
