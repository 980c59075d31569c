#include "butterfly/infer/speculation/draft_budget.h"

#include <algorithm>
#include <cstddef>

namespace butterfly {

void DraftAcceptance::observe(int tried, int accepted) {
  constexpr double kWeight = 0.15;  // of the newest
  for (int i = 0; i < std::min(accepted + 1, tried); ++i) rate_ += kWeight * ((i < accepted ? 1.0 : 0.0) - rate_);
  if (tried > 0) return_ = accepted > 0 ? kReturn : std::max(return_ / 2, kReturn / 8);
}

void DraftAcceptance::skip() {
  rate_ += return_ * std::max(kPrior - rate_, 0.0);
}

void DraftBudget::observe(int texts, int rows, double seconds) {
  if (rows < 1 || rows > kRowsMax || seconds <= 0) return;
  guessed_ = rows > texts ? guessed_ + 1 : 0;
  if (rows == texts && plain_ < kFirst && ++plain_ < kFirst) return;
  constexpr double kWeight = 0.25;  // of the newest
  double& known = seconds_[static_cast<std::size_t>(rows)];
  known = known > 0 ? known + kWeight * (seconds - known) : seconds;
}

double DraftBudget::seconds(int rows) const {
  const auto at = [&](int n) { return seconds_[static_cast<std::size_t>(n)]; };
  int below = std::clamp(rows, 0, kRowsMax);
  int above = std::max(below, 1);
  while (below > 0 && at(below) == 0) --below;
  while (above <= kRowsMax && at(above) == 0) ++above;
  // Nothing is known of more rows: they cost nothing until they are tried.
  if (above > kRowsMax) return below > 0 ? at(below) : 0;
  double between = at(above);
  if (below > 0 && below < above) {
    between = at(below) + (at(above) - at(below)) * (rows - below) / (above - below);
  }
  // More rows take no less time: one slow step does not speak against its size.
  for (int n = above; n <= kRowsMax; ++n) {
    if (at(n) > 0) between = std::min(between, at(n));
  }
  return between;
}

int DraftBudget::rows_max() const {
  int largest = kRowsMax;
  while (largest > 0 && seconds_[static_cast<std::size_t>(largest)] == 0) --largest;
  return std::clamp(2 * largest, kFirstTry, kRowsMax);
}

int DraftBudget::rows(int texts, std::span<const double> chances, double guess_s) const {
  constexpr double kLeastGain = 1.02;
  if (plain_ < kFirst || guessed_ >= kAgain || seconds(texts) <= 0) return 0;
  double best = kLeastGain * texts / seconds(texts);
  int best_rows = 0;
  double tokens = texts;
  for (int n = 1; n <= static_cast<int>(chances.size()) && texts + n <= rows_max(); ++n) {
    tokens += chances[static_cast<std::size_t>(n) - 1];
    const double rate = tokens / (seconds(texts + n) + n * guess_s);
    if (rate <= best) continue;
    best = rate;
    best_rows = n;
  }
  return best_rows;
}

}  // namespace butterfly
