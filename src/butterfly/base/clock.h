// Time that has passed, in seconds. Thread-safe.
#pragma once

#include <chrono>

namespace butterfly {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace butterfly
