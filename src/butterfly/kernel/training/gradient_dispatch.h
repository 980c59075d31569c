// From an instruction set to its loops for gradients on their way. Thread-safe.
#pragma once

#include "butterfly/kernel/training/gradient_rows.h"
#include "butterfly/machine/isa.h"

namespace butterfly {

/// Those of `isa`, which must be among supported_isas().
const GradientRows& gradient_rows_for(Isa isa);

}  // namespace butterfly
