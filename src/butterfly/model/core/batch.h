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
  std::int32_t logits_from = 0;   // rows with this index in the run and later get logits; == rows: none
  std::int32_t logits_to = 0;     // and those from here on do not; 0: == rows
  std::int32_t encoder_rows = 0;  // of a decoder's run: positions of the encoded text that it attends to

  std::int32_t logit_rows() const { return (logits_to == 0 ? rows : logits_to) - logits_from; }
};

/// kContinue: rows see those before them. kEncode: runs are whole texts from position 0, each row sees all of its run,
/// and layers of a decoder keep what they will attend to.
enum class BatchKind : std::uint8_t { kContinue, kEncode };

struct Batch {
  std::vector<SequenceRun> runs;
  BatchKind kind = BatchKind::kContinue;

  std::int64_t rows() const {
    std::int64_t total = 0;
    for (const SequenceRun& run : runs) total += run.rows;
    return total;
  }
  std::int64_t logit_rows() const {
    std::int64_t total = 0;
    for (const SequenceRun& run : runs) total += run.logit_rows();
    return total;
  }
};

}  // namespace butterfly
