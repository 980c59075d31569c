// How far a model is loaded, on stderr: a line that changes on a terminal, else lines of the log (BUTTERFLY_LOG=info).
// One call at a time.
#pragma once

#include <cstdint>

#include "butterfly/stage/stage_parts.h"

namespace butterfly::app {

class LoadDisplay {
 public:
  LoadDisplay();
  ~LoadDisplay();
  LoadDisplay(const LoadDisplay&) = delete;
  LoadDisplay& operator=(const LoadDisplay&) = delete;

  /// What loads within a moment is not shown.
  void show(const LoadProgress& progress);

 private:
  void clear();

  const bool terminal_;
  bool drawn_ = false;
  std::uint64_t begin_ns_ = 0;  // of the load that goes on
  std::uint64_t told_ns_ = 0;   // when its last line was written
};

}  // namespace butterfly::app
