// One log line for every client that is turned away, and not more than a few a second: under siege the rest are
// counted and the count is logged. Not thread-safe: the accepting thread's.
#pragma once

#include <chrono>
#include <string>

#include "butterfly/wire/channel/channel.h"

namespace butterfly {

class Refusals {
 public:
  /// `where`: the address that was connected to.
  explicit Refusals(std::string where) : where_(std::move(where)) {}

  void refuse(const std::string& peer, const std::string& reason);

  /// Logs a pending count when its second is over.
  void flush();

  /// When flush() has something to do; the end of time when there is nothing.
  Deadline next_flush() const;

 private:
  const std::string where_;
  Deadline window_end_{};
  int logged_ = 0;  // in this window
  std::uint64_t suppressed_ = 0;
};

}  // namespace butterfly
