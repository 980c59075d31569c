// For how long the other side of a connection has owed an acknowledgement. The kernel says when the last one came;
// after a rest that is long ago, also when something was sent just now. So what earlier looks saw decides. Not
// thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace butterfly {

/// What the kernel knows of a connection.
struct Acknowledgements {
  bool awaited = false;                    // segments are under way
  std::uint64_t bytes = 0;                 // acknowledged so far
  std::chrono::milliseconds last_came{0};  // so long ago
};

class AckWatch {
 public:
  /// Since the first look at which what is awaited now was awaited; 0 where nothing is. Too little by up to the time
  /// between two looks.
  std::chrono::milliseconds owed(const Acknowledgements& seen, std::chrono::steady_clock::time_point now);

 private:
  std::optional<std::chrono::steady_clock::time_point> since_;
  std::uint64_t bytes_ = 0;
};

}  // namespace butterfly
