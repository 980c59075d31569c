// How prompts are cut so that every stage of a pipeline has something to do. Huang et al., "GPipe" (2019).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace butterfly {

/// Rows of prompts that one step takes, of `pending` that are to be computed, by a pipeline of `stages`. While the
/// first step is in the last stage, each other stage needs one: with n = pending / r steps of r rows, n + stages - 1
/// times that of one pass. A step takes as long as r + c rows, since it reads every weight once; the whole is shortest
/// with r = sqrt(pending c / (stages - 1)).
inline int micro_batch_rows(std::int64_t pending, int stages, int rows_max) {
  constexpr double kStepCost = 6;  // c; measured: 1 with AVX2, 4 with AVX-512, 6 with AMX
  constexpr double kTile = 48;     // whole tiles of every instruction set: 16 rows of AMX, 6 and 12 of the others
  if (stages <= 1) return rows_max;
  const double best = std::sqrt(static_cast<double>(pending) * kStepCost / (stages - 1));
  const double rows = kTile * std::max(1.0, std::round(best / kTile));
  return static_cast<int>(std::min<double>(rows, rows_max));
}

/// The prompts that wait to be computed. Their steps are of one length until none is left, since the longest is what
/// each further stage waits for.
class PromptBacklog {
 public:
  /// Rows of prompts that the next step takes; `pending` are left now.
  int rows(std::int64_t pending, int stages, int rows_max) {
    most_ = pending == 0 ? 0 : std::max(most_, pending);
    return micro_batch_rows(most_, stages, rows_max);
  }

 private:
  std::int64_t most_ = 0;
};

}  // namespace butterfly
