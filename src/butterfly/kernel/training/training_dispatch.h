// From an instruction set to its training kernels. Thread-safe.
#pragma once

#include "butterfly/kernel/training/training_kernels.h"
#include "butterfly/machine/isa.h"

namespace butterfly {

/// The training kernels of `isa`, which must be among supported_isas().
const TrainingKernels& training_kernels(Isa isa);

}  // namespace butterfly
