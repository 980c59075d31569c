// From the recordings of a command, run once or several times, to everything that a study says of it. Pure.
#pragma once

#include <vector>

#include "butterfly/study/analysis/results.h"

namespace butterfly::study {

/// Intervals are between repeats where there are several; all else is of the repeat whose steps are in the middle.
/// Errors: kNotFound where no process recorded a step of a kind that is known.
Result<Study> analyse(const std::vector<RecordedRun>& repeats, const StepSelection& selection);

}  // namespace butterfly::study
