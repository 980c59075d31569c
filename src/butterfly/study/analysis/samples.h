// What sampled sums had become at a moment between samples. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "butterfly/trace/recording.h"

namespace butterfly::study {

using SampledValue = std::function<double(const trace::Sample&)>;

/// Between two samples on the straight line that joins them; before the first and after the last as those.
double value_at(std::span<const trace::Sample> samples, std::uint64_t at_ns, const SampledValue& value);

/// By how much it grew; 0 where it shrank, or nothing was sampled.
double growth_between(std::span<const trace::Sample> samples, std::uint64_t begin_ns, std::uint64_t end_ns,
                      const SampledValue& value);

SampledValue counter(trace::Counter which);

}  // namespace butterfly::study
