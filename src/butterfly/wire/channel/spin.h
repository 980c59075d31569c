// Spin-then-block: waking a blocked thread on another core costs tens of microseconds, finding data by looking again
// costs three. A wait may look again for a short while first, where another core is left to make progress on.
#pragma once

#include <chrono>

#include "butterfly/machine/topology.h"

namespace butterfly {

/// True where each of `waiters`, who wait for each other on this machine, may have a core; spinning on a core that
/// another one needs, or against a quota, only delays it.
inline bool may_spin(int waiters = 2) {
  static const int cores = usable_threads();
  return waiters <= cores;
}

inline void relax_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// The end of a spin that begins now and never outlasts the deadline.
inline std::chrono::steady_clock::time_point spin_end(std::chrono::microseconds spin,
                                                      std::chrono::steady_clock::time_point deadline, int waiters = 2) {
  const auto now = std::chrono::steady_clock::now();
  if (!may_spin(waiters) || deadline <= now) return now;
  return deadline - now < spin ? deadline : now + spin;
}

}  // namespace butterfly
