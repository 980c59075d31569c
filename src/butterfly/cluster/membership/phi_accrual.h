// How surprising a silence is: the phi-accrual failure detector of Hayashibara et al., "The phi accrual failure
// detector", SRDS 2004, https://doi.org/10.1109/RELDIS.2004.1353004. It raises suspicion; a deadline decides. Not
// thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>

namespace butterfly {

class PhiAccrual {
 public:
  using Clock = std::chrono::steady_clock;

  /// `expected`: the interval of the heartbeats, believed until enough of them were seen.
  explicit PhiAccrual(std::chrono::milliseconds expected) : expected_(expected) {}

  void heard(Clock::time_point now);

  /// -log10 of the probability that a silence as long as this one ends by itself, if the intervals are normally
  /// distributed as those seen; 0 before the first heartbeat. 1 is wrong once in ten times, 8 once in 10^8.
  double phi(Clock::time_point now) const;

  Clock::time_point last_heard() const { return last_; }

  /// A suspicion worth telling.
  static constexpr double kSuspicious = 8.0;

 private:
  static constexpr std::size_t kWindow = 100;  // intervals that are remembered

  std::chrono::milliseconds expected_;
  Clock::time_point last_{};
  std::deque<double> intervals_s_;
};

}  // namespace butterfly
