// From an instruction set to its kernels. Thread-safe.
#pragma once

#include <functional>
#include <string_view>

#include "butterfly/kernel/inference/kernels.h"
#include "butterfly/machine/isa.h"

namespace butterfly {

/// The kernels of `isa`, which must be among supported_isas(). At the first use a set is compared with the reference on
/// this machine (self_check.h); in place of one that differs there is the next slower one that does not, and the log
/// says so.
const Kernels& kernels_for(Isa isa);

/// The same without that comparison, for tests.
const Kernels& unchecked_kernels(Isa isa);

/// `isa` or the next slower one of this machine in which `difference` finds nothing.
Isa agreeing_isa(Isa isa, const std::function<std::string_view(Isa)>& difference);

}  // namespace butterfly
