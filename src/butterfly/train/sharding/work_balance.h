// Which share of a step each rank computes, by what ranks were seen to take: machines differ, and some have other work
// to do. Every rank sees the same times and comes to the same shares. Not thread-safe.
#pragma once

#include <span>
#include <vector>

#include "butterfly/plan/cost/micro_batch_shares.h"

namespace butterfly {

class WorkBalance {
 public:
  /// Shares with which the ranks begin, in rank order.
  explicit WorkBalance(std::vector<MicroBatches> shares);

  const std::vector<MicroBatches>& shares() const { return shares_; }

  /// After each step: the seconds that each of its micro-batches took, forward and backward; [shares()[0].total].
  /// True where shares() are others from now on: the slowest rank is expected to be done a tenth sooner by what two
  /// steps have shown, which may be chance, a twentieth by what more have.
  bool observe(std::span<const double> pass_s);

  /// Of one micro-batch, by rank, over the steps on which the shares stand; empty: those to begin with.
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  static constexpr double kLeastGainAtFirst = 0.1, kLeastGain = 0.05;
  static constexpr double kLeastStepS = 0.1;  // of the slowest rank's passes; times of shorter ones say little
  static constexpr int kWarmUp = 1;           // steps that touch memory first
  static constexpr int kFirstWindow = 2;      // steps whose times count, the first time and then
  static constexpr int kWindow = 8;

  std::vector<MicroBatches> shares_;
  std::vector<double> sums_;  // seconds by rank, of all micro-batches of the window
  std::vector<double> seconds_;
  int steps_ = -kWarmUp;
  int window_ = kFirstWindow;
};

/// How many micro-batches each rank computes for the slowest to be done as soon as possible, at least one each;
/// `seconds` of one, by rank.
std::vector<int> balanced_counts(int total, std::span<const double> seconds);

}  // namespace butterfly
