#include "butterfly/cluster/membership/phi_accrual.h"

#include <algorithm>
#include <cmath>

namespace butterfly {

void PhiAccrual::heard(Clock::time_point now) {
  if (last_ != Clock::time_point{}) {
    intervals_s_.push_back(std::chrono::duration<double>(now - last_).count());
    if (intervals_s_.size() > kWindow) intervals_s_.pop_front();
  }
  last_ = now;
}

double PhiAccrual::phi(Clock::time_point now) const {
  if (last_ == Clock::time_point{}) return 0;
  const double expected = std::chrono::duration<double>(expected_).count();
  double sum = expected;
  double squares = 0;
  for (const double interval : intervals_s_) sum += interval;
  const double mean = sum / static_cast<double>(intervals_s_.size() + 1);
  for (const double interval : intervals_s_) squares += (interval - mean) * (interval - mean);
  // Perfectly regular heartbeats would make the first late one a certain death: half an interval of doubt remains.
  const double deviation = std::max(std::sqrt(squares / static_cast<double>(intervals_s_.size() + 1)), expected / 2);
  const double silence = std::chrono::duration<double>(now - last_).count();
  const double later = 0.5 * std::erfc((silence - mean) / (deviation * std::sqrt(2.0)));
  constexpr double kLeast = 1e-300;  // beyond it erfc is 0
  return -std::log10(std::max(later, kLeast));
}

}  // namespace butterfly
