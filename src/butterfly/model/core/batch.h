// What one step computes: rows of several sequences, each a run of consecutive positions. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "butterfly/base/ids.h"

namespace butterfly {

/// Rows [first_row, first_row + rows) of the step are positions [position, position + rows) of one sequence.
struct SequenceRun {
  SequenceId sequence;
  std::int32_t position = 0;
  std::int32_t rows = 0;
  std::int32_t logits_from = 0;  // rows with this index in the run and later get logits; == rows: none
};

struct Batch {
  std::vector<SequenceRun> runs;

  std::int64_t rows() const {
    std::int64_t total = 0;
    for (const SequenceRun& run : runs) total += run.rows;
    return total;
  }
  std::int64_t logit_rows() const {
    std::int64_t total = 0;
    for (const SequenceRun& run : runs) total += run.rows - run.logits_from;
    return total;
  }
};

}  // namespace butterfly
