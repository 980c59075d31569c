// The learning rate of each step. Plain functions, thread-safe.
#pragma once

#include <cstdint>

#include "butterfly/train/config/run_config.h"

namespace butterfly {

/// The rate of step `step` (from 0) of `steps`, as a share of the peak. Linear warm-up reaches 1 at the step before
/// `warmup_steps` (step t has (t + 1) / warmup_steps, so that no step is wasted on a rate of 0). With p running from 0
/// at the first step after it to 1 at the last one, and f = final_share:
///   constant  1
///   linear    1 - (1 - f) p
///   cosine    f + (1 - f) (1 + cos(pi p)) / 2
///   wsd       1, and over the last decay_share of all steps linearly to f
double rate_share(const ScheduleConfig& schedule, std::int64_t steps, std::int64_t step);

/// rate_share() times the peak.
double rate_of_step(const RunConfig& config, std::int64_t step);

}  // namespace butterfly
