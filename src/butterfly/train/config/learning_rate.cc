#include "butterfly/train/config/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace butterfly {
namespace {

/// 0 at `first` or before, 1 at `last`.
double progress(std::int64_t step, std::int64_t first, std::int64_t last) {
  if (step >= last) return 1.0;
  return static_cast<double>(std::max<std::int64_t>(0, step - first)) / static_cast<double>(last - first);
}

}  // namespace

double rate_share(const ScheduleConfig& schedule, std::int64_t steps, std::int64_t step) {
  const std::int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double fall = 1.0 - schedule.final_share;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return 1.0;
    case ScheduleKind::kLinear:
      return 1.0 - fall * progress(step, warmup, steps - 1);
    case ScheduleKind::kCosine:
      return schedule.final_share + fall * (1.0 + std::cos(std::numbers::pi * progress(step, warmup, steps - 1))) / 2.0;
    case ScheduleKind::kWsd: {
      const auto decay = static_cast<std::int64_t>(std::llround(schedule.decay_share * static_cast<double>(steps)));
      if (decay == 0) return 1.0;
      // The step before the first of the decay is the last with 1.
      return 1.0 - fall * progress(step, std::max(warmup, steps - decay) - 1, steps - 1);
    }
  }
  return 1.0;
}

double rate_of_step(const RunConfig& config, std::int64_t step) {
  return config.optimizer.rate * rate_share(config.schedule, config.steps, step);
}

}  // namespace butterfly
