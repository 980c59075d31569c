// What a recording of training tells beside its spans: the model, the settings of its steps, the place among the ranks.
#pragma once

#include "butterfly/train/step/train_step.h"

namespace butterfly {

/// Ranks that are threads of one process have one recording: rank 0 tells of it.
void set_step_facts(const StepContext& context);

}  // namespace butterfly
