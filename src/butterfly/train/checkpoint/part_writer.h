// Writes this rank's part of a checkpoint while the run goes on: begin() copies it, a thread writes it. Used by the
// thread that trains.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"

namespace butterfly {

class PartWriter {
 public:
  /// `files` is borrowed.
  explicit PartWriter(CheckpointFiles& files);
  /// Waits for what is under way.
  ~PartWriter();

  /// Copies the ranges of each array and begins to write them into `folder`, which begin_checkpoint() made. What was
  /// under way before is waited for, and nobody asks for it any more. What goes wrong here, too, is told by wait().
  void begin(const std::string& folder, int rank, std::span<const RunArray> arrays);

  /// Whether wait() returns at once.
  bool done() const;

  /// The files that were written, once after each begin(). Errors: kNoMemory for the copy, those of write_parts().
  Result<std::vector<CheckpointFile>> wait();

  /// Size of the copy.
  std::uint64_t memory_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace butterfly
