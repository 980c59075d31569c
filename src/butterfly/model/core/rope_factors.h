// Rope scaling as GGUF files express it: a factor per rotated pair instead of the rule that made it.
// Every reader and writer uses this form, so a model has the same frequencies whatever file it comes from. Thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"

namespace butterfly {

/// llama3 scaling turned into `factors` (unscaled over scaled frequency, rounded to float); others unchanged.
RopeConfig with_explicit_factors(const RopeConfig& rope);

/// Yarn as `factors`, which also say where they come from. Errors: kBadData naming what cannot be scaled by.
Result<RopeConfig> with_yarn(const RopeConfig& rope, const YarnScaling& yarn);

}  // namespace butterfly
