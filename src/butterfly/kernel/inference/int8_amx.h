// See int8_amx.cc.
#pragma once

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {

/// kInt8's part of linear_amx(). False, and nothing done, where AVX-512 is to do it: too few rows, or too wide ones.
bool linear_amx_int8(const LinearArgs& args);

}  // namespace butterfly
