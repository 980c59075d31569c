// Fetching into the second cache what a matmul will want next, a few lines at a time while it computes. For files
// compiled for x86-64.
#pragma once

#include <immintrin.h>

#include "butterfly/kernel/gemm/gemm_kernels.h"

namespace butterfly {
namespace {

/// Memory that is not there is not fetched, which is no fault.
inline void prefetch(const void* line) {
  _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1);
}

/// Walks over rows of memory, line by line, so that `calls` calls of fetch() see all of them.
class LinesAhead {
 public:
  LinesAhead(const MemoryRows& rows, long calls) : at_(static_cast<const char*>(rows.from)), rows_(rows) {
    const long lines = rows.rows * ((rows.bytes + kLine - 1) / kLine);
    per_call_ = calls > 0 ? (lines + calls - 1) / calls : 0;
  }

  void fetch() {
    for (long i = 0; i < per_call_ && rows_.rows > 0; ++i) {
      prefetch(at_ + column_);
      column_ += kLine;
      if (column_ < rows_.bytes) continue;
      column_ = 0;
      at_ += rows_.stride;
      --rows_.rows;
    }
  }

 private:
  static constexpr long kLine = 64;
  const char* at_;
  long column_ = 0;
  long per_call_ = 0;
  MemoryRows rows_;
};

}  // namespace
}  // namespace butterfly
