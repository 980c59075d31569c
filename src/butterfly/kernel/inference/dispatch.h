// From an instruction set to its kernels. Thread-safe.
#pragma once

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/machine/isa.h"

namespace butterfly {

/// The kernels of `isa`, which must be among supported_isas().
const Kernels& kernels_for(Isa isa);

}  // namespace butterfly
