#include "butterfly/train/sharding/work_balance.h"

#include <algorithm>
#include <utility>

namespace butterfly {
namespace {

int count_of(const MicroBatches& share) {
  return share.last - share.first;
}

}  // namespace

std::vector<int> balanced_counts(int total, std::span<const double> seconds) {
  std::vector<int> counts(seconds.size(), 1);
  for (int left = total - static_cast<int>(counts.size()); left > 0; --left) {
    std::size_t first_done = 0;
    for (std::size_t rank = 1; rank < counts.size(); ++rank) {
      if ((counts[rank] + 1) * seconds[rank] < (counts[first_done] + 1) * seconds[first_done]) first_done = rank;
    }
    ++counts[first_done];
  }
  return counts;
}

WorkBalance::WorkBalance(std::vector<MicroBatches> shares) : shares_(std::move(shares)), sums_(shares_.size(), 0.0) {}

bool WorkBalance::observe(std::span<const double> pass_s) {
  if (++steps_ <= 0) return false;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    for (int i = shares_[rank].first; i < shares_[rank].last; ++i) sums_[rank] += pass_s[static_cast<std::size_t>(i)];
  }
  if (steps_ < window_) return false;
  std::vector<double> seconds;
  double now_s = 0.0, then_s = 0.0;
  for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
    seconds.push_back(sums_[rank] / (steps_ * count_of(shares_[rank])));
    now_s = std::max(now_s, sums_[rank] / steps_);
  }
  const double least_gain = window_ == kWindow ? kLeastGain : kLeastGainAtFirst;
  sums_.assign(shares_.size(), 0.0);
  steps_ = 0;
  window_ = kWindow;
  const std::vector<int> counts = balanced_counts(shares_.front().total, seconds);
  for (std::size_t rank = 0; rank < counts.size(); ++rank) then_s = std::max(then_s, counts[rank] * seconds[rank]);
  if (now_s < kLeastStepS || !(then_s < (1.0 - least_gain) * now_s)) return false;
  int first = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    shares_[rank] = {.first = first, .last = first + counts[rank], .total = shares_[rank].total};
    first += counts[rank];
  }
  seconds_ = std::move(seconds);
  steps_ = -kWarmUp;
  return true;
}

}  // namespace butterfly
