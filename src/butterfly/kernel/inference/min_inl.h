// std::min without a standard header. Internal linkage (see kernels.h).
#pragma once

namespace butterfly {
namespace {

inline long min_of(long a, long b) {
  return a < b ? a : b;
}

}  // namespace
}  // namespace butterfly
