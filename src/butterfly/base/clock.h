// Time that has passed, and CPU time, in seconds. Thread-safe.
#pragma once

#include <time.h>

#include <chrono>

namespace butterfly {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// CPU time that the calling thread (CLOCK_THREAD_CPUTIME_ID) or the process (CLOCK_PROCESS_CPUTIME_ID) has used.
inline double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace butterfly
