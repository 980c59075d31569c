// Weights that are no numbers: one of them makes every answer meaningless, and not every answer looks so. Thread-safe.
#pragma once

#include <span>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/weights.h"

namespace butterfly {

/// Errors: kBadData naming the source, the weight, and where it holds NaN or an infinity; of quantised weights the
/// scales are looked at.
Status check_finite(const WeightSource& source, const std::string& name, const MatrixView& matrix, ThreadTeam& team);

/// The same for a vector that was read.
Status check_finite(const WeightSource& source, const std::string& name, std::span<const float> values);

}  // namespace butterfly
