// Rope scaling as GGUF files express it: a factor per rotated pair instead of the rule that made it.
// Every reader and writer uses this form, so a model has the same frequencies whatever file it comes from. Thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

/// llama3 scaling turned into `factors` (unscaled over scaled frequency, rounded to float); others unchanged.
RopeConfig with_explicit_factors(const RopeConfig& rope);

/// https://arxiv.org/abs/2309.00071: pairs that turn more often than beta_fast in the original context are kept, those
/// that turn less often than beta_slow are stretched by `factor`, between them the frequency is interpolated.
struct YarnScaling {
  float factor = 1.0f;
  int original_context = 0;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  bool truncate = true;  // borders between pairs are rounded outwards
};
/// Yarn as `factors`. Errors: kBadData naming what cannot be scaled by.
Result<RopeConfig> with_yarn(const RopeConfig& rope, const YarnScaling& yarn);

}  // namespace butterfly
