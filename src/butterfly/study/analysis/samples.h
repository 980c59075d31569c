// What sampled sums had become at a moment between samples. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "butterfly/study/read/recorded_run.h"
#include "butterfly/trace/recording.h"

namespace butterfly::study {

using SampledValue = std::function<double(const trace::Sample&)>;

/// When a sum grew, by spans that say so: it counts in jumps, and a step can be shorter or longer than samples are
/// apart.
class Course {
 public:
  /// Each span of this zone in the process adds its bytes at its end, or one.
  enum class Adds : std::uint8_t { kOne, kBytes };
  Course() = default;  // nothing is known: evenly
  Course(const Process& process, trace::Zone zone, Adds adds);

  double until(std::uint64_t at_ns) const;

 private:
  std::vector<std::pair<std::uint64_t, double>> sums_;  // by time
};

/// Between two samples along the course, on a straight line where it knows of nothing there; before the first and after
/// the last as those.
double value_at(std::span<const trace::Sample> samples, std::uint64_t at_ns, const SampledValue& value,
                const Course& course = {});

/// By how much it grew; 0 where it shrank, or nothing was sampled.
double growth_between(std::span<const trace::Sample> samples, std::uint64_t begin_ns, std::uint64_t end_ns,
                      const SampledValue& value, const Course& course = {});

SampledValue counter(trace::Counter which);

}  // namespace butterfly::study
