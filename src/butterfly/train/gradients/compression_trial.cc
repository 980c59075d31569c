#include "butterfly/train/gradients/compression_trial.h"

#include <algorithm>

namespace butterfly {
namespace {

/// The smaller of the two in the middle: a step that something else made long counts for less.
double lower_median(const std::vector<double>& sorted) {
  return sorted[(sorted.size() - 1) / 2];
}

struct Rule {
  double lead = 1.0;
  std::size_t outliers = 0;  // of either side
};

/// Compares two ascending lists.
bool is_faster(const std::vector<double>& a, const std::vector<double>& b, const Rule& rule) {
  return lower_median(a) * rule.lead < lower_median(b) && a[a.size() - 1 - rule.outliers] < b[rule.outliers];
}

}  // namespace

CompressionTrial::Verdict CompressionTrial::observe(double seconds) {
  const bool counts = counted();
  auto& mine = side() == Side::kHeld ? held_s_ : challenger_s_;
  ++step_;
  if (!counts) return Verdict::kOpen;
  mine.insert(std::ranges::upper_bound(mine, seconds), seconds);
  const std::size_t steps = std::min(held_s_.size(), challenger_s_.size());
  if (steps < 2) return Verdict::kOpen;
  const bool last = steps >= kSteps;
  const double early = steps >= kEarlySteps ? kLeadEarly : kLeadAtOnce;
  const Rule rule{.lead = last ? kLead : early, .outliers = last ? 1U : 0U};
  if (is_faster(challenger_s_, held_s_, rule)) return Verdict::kChallenger;
  return last || is_faster(held_s_, challenger_s_, rule) ? Verdict::kHeld : Verdict::kOpen;
}

}  // namespace butterfly
