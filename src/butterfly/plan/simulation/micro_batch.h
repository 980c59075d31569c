// How prompts are cut so that every stage of a pipeline has something to do. Huang et al., "GPipe" (2019).
#pragma once

#include <algorithm>
#include <cstdint>

namespace butterfly {

/// Rows of prompts that one step takes at most, of `pending` that are to be computed, by a pipeline of `stages`. While
/// the first step is in the last stage, each other stage needs one: with n steps of equal length, n + stages - 1 times
/// that of one pass. Steps get no shorter than where a matmul of many rows begins to be slower for each of them, and
/// are whole tiles of each instruction set's matmuls.
inline int micro_batch_rows(std::int64_t pending, int stages, int rows_max) {
  constexpr std::int64_t kStepsPerStage = 8;
  constexpr std::int64_t kLeast = 72;
  constexpr std::int64_t kTile = 12;
  if (stages <= 1) return rows_max;
  const std::int64_t rows_of_a_tile_each = kStepsPerStage * stages * kTile;
  const std::int64_t rows = (pending + rows_of_a_tile_each - 1) / rows_of_a_tile_each * kTile;
  return static_cast<int>(std::min<std::int64_t>(std::max(kLeast, rows), rows_max));
}

}  // namespace butterfly
