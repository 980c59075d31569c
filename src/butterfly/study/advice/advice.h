// What to do about it: causes by what their remedy would save, each with a predicted gain and its interval. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/study/analysis/results.h"

namespace butterfly::study {

/// The headings under which causes are told.
enum class Heading : std::uint8_t {
  kSeparateQkv,
  kAttentionMemory,
  kSeparateGateUp,
  kLaunchOverhead,
  kFragmentation,
  kSoftmax,
  kUtilisation,
  kCommunication,
  kPlacement,
  kSteadiness,
  kMemory
};
inline constexpr int kFormHeadings = 6;  // the first ones have a verdict in every report
std::string_view to_string(Heading heading);

enum class Effort : std::uint8_t { kFlag, kSetup, kCode };
std::string_view to_string(Effort effort);

enum class Priority : std::uint8_t { kCritical, kHigh, kMedium, kLow };
std::string_view to_string(Priority priority);

struct Cause {
  std::string id;  // "idle_cpus"
  Heading heading = Heading::kUtilisation;
  std::string workload;  // "decode"; empty: the whole run
  std::string what;      // a sentence with what was measured
  std::string remedy;
  Effort effort = Effort::kFlag;
  Priority priority = Priority::kLow;
  double gain = 0.0;  // share of the step's time that it would save; 0: it saves memory, or makes times steadier
  double speedup = 1.0, speedup_low = 1.0, speedup_high = 1.0;
};

struct HeadingVerdict {
  Heading heading = Heading::kSeparateQkv;
  std::string verdict;
};

struct Advice {
  std::vector<Cause> causes;  // most gain first; what endangers the run before all
  std::vector<HeadingVerdict> headings;
  /// Half the width of an interval as a share of what is predicted, from measured variance and disturbance.
  double uncertainty = 0.0;
  bool inconclusive = false;  // beyond 60 %
};

Advice advise(const Study& study);

}  // namespace butterfly::study
