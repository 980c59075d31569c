// Whether kernels give the reference's bits on this very machine: a CPU, a hypervisor or a compiler may be at fault
// where tests elsewhere passed. Thread-safe.
#pragma once

#include <string_view>

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {

/// The first operation whose bits differ from those of `reference` on small random operands, "matmul of q8_0" say;
/// empty: none does. About a millisecond. It is no substitute for the parity tests: one shape of each operation is
/// compared.
std::string_view first_difference(const Kernels& kernels, const Kernels& reference);

}  // namespace butterfly
