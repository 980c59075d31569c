// How fast ranks are that go through a step together, so that it takes as long as the slowest of them: their speeds,
// from the times that they were seen to compute. Every rank sees the same times and comes to the same speeds. Not
// thread-safe.
#pragma once

#include <span>
#include <vector>

namespace butterfly {

class SpeedWatch {
 public:
  /// After each step: the seconds in which each rank computed, and its part of the step's work. At the end of a window,
  /// which is twice as long as the one before: the ranks' speeds, in steps' work a second; else nothing.
  std::vector<double> observe(std::span<const double> busy_s, std::span<const double> work);

  /// By how much of itself a step has to become shorter for its work to be divided by what observe() just gave: what
  /// two steps show may be chance.
  double least_gain() const { return window_ > 2 * kFirstWindow ? 0.05 : 0.1; }

  /// The work is divided otherwise from now on: a step that touches memory first does not count.
  void divided_anew();

 private:
  static constexpr int kWarmUp = 1;  // steps
  static constexpr int kFirstWindow = 2, kLastWindow = 64;

  std::vector<double> busy_s_;  // sums over the window, by rank
  std::vector<double> work_;
  int steps_ = -kWarmUp;
  int window_ = kFirstWindow;
};

}  // namespace butterfly
