// Where wishes for another plan are handed from those who have them to the thread that computes, which alone may plan.
// Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "butterfly/base/result.h"

namespace butterfly {

class RebalanceQueue {
 public:
  /// Hands in a wish and waits for its outcome; those who wait already get the same one. Errors: what answer() said;
  /// kUnavailable where nobody looked within `patience`.
  Result<std::string> ask(std::chrono::milliseconds patience);

  /// Whether a request waits.
  bool wanted() const;

  /// The outcome for all who wait.
  void answer(const Result<std::string>& outcome);

  /// Nobody will look any more: kUnavailable for all who wait and all who come.
  void close();

 private:
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  int waiting_ = 0;
  std::uint64_t round_ = 0;  // of answers
  std::optional<Result<std::string>> outcome_;
  bool closed_ = false;
};

}  // namespace butterfly
