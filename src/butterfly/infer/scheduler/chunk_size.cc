#include "butterfly/infer/scheduler/chunk_size.h"

#include <algorithm>
#include <bit>

namespace butterfly {
namespace {

int size_class(int texts, int classes) {
  return std::min(static_cast<int>(std::bit_width(static_cast<unsigned>(std::max(texts, 1)))) - 1, classes - 1);
}

void follow(double& average, double value) {
  constexpr double kWeight = 0.25;  // of the newest
  average = average > 0 ? average + kWeight * (value - average) : value;
}

}  // namespace

double& ChunkSize::text_s(int texts) {
  return text_s_[static_cast<std::size_t>(size_class(texts, kSizes))];
}

/// Of the class itself, or of the next smaller one that was seen: fewer texts take no longer.
double ChunkSize::known_text_s(int texts) const {
  for (int i = size_class(texts, kSizes); i >= 0; --i) {
    if (text_s_[static_cast<std::size_t>(i)] > 0) return text_s_[static_cast<std::size_t>(i)];
  }
  return 0;
}

void ChunkSize::observe(int texts, int prompt_rows, double seconds) {
  if (prompt_rows == 0) {
    if (texts > 0) follow(text_s(texts), seconds);
    mixed_ = 0;
    return;
  }
  if (texts == 0) return follow(row_s_, seconds / prompt_rows);
  ++mixed_;
  const double without_s = known_text_s(texts);
  constexpr double kLeast = 0.2;  // of what was believed: one short step does not make prompts free
  if (without_s > 0) {
    follow(row_s_, std::max((seconds - without_s) / prompt_rows, kLeast * row_s_));
  }
}

int ChunkSize::rows(int texts) {
  if (slowdown_max_ <= 0 || texts == 0) return rows_max_;
  const double without_s = known_text_s(texts);
  if (without_s <= 0 || mixed_ >= kAgain) return 0;
  return bearable(without_s);
}

int ChunkSize::rows_before(int texts) const {
  const double without_s = known_text_s(texts);
  return slowdown_max_ <= 0 || without_s <= 0 ? rows_max_ : bearable(without_s);
}

int ChunkSize::bearable(double without_s) const {
  if (row_s_ <= 0) return std::min(kFewest, rows_max_);
  const double rows = (slowdown_max_ - 1) * without_s / row_s_;
  return std::clamp(static_cast<int>(std::min(rows, 1e6)), std::min(kFewest, rows_max_), rows_max_);
}

}  // namespace butterfly
