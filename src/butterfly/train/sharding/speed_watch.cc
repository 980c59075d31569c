#include "butterfly/train/sharding/speed_watch.h"

#include <algorithm>

namespace butterfly {

std::vector<double> SpeedWatch::observe(std::span<const double> busy_s, std::span<const double> work) {
  if (++steps_ <= 0) return {};
  busy_s_.resize(busy_s.size(), 0.0);
  work_.resize(work.size(), 0.0);
  for (std::size_t rank = 0; rank < busy_s.size(); ++rank) {
    busy_s_[rank] += busy_s[rank];
    work_[rank] += work[rank];
  }
  if (steps_ < window_) return {};
  std::vector<double> speeds;
  for (std::size_t rank = 0; rank < busy_s.size(); ++rank) {
    if (!(busy_s_[rank] > 0.0) || !(work_[rank] > 0.0)) {
      speeds.clear();
      break;
    }
    speeds.push_back(work_[rank] / busy_s_[rank]);
  }
  busy_s_.clear();
  work_.clear();
  steps_ = 0;
  window_ = std::min(2 * window_, kLastWindow);
  return speeds;
}

void SpeedWatch::divided_anew() {
  busy_s_.clear();
  work_.clear();
  steps_ = -kWarmUp;
}

}  // namespace butterfly
