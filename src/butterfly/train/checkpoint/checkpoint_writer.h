// Saves a run while it goes on: save() copies the state, a thread writes it. One save at a time; the next one waits for
// the one before. Used by the thread that trains.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/train/checkpoint/checkpoint_files.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

/// How a save ended.
struct SaveOutcome {
  std::int64_t step = 0;
  Result<std::string> path{};  // of the checkpoint
};

class CheckpointWriter {
 public:
  /// `files` is borrowed.
  CheckpointWriter(const CheckpointConfig& config, CheckpointFiles& files);
  /// Waits for a save that is under way.
  ~CheckpointWriter();

  /// Copies `run` and begins to write it; with asynchronous = false it is written on return. The outcome is asked for
  /// with finished() or wait(). Call it only when no outcome is pending. Errors: kNoMemory for the copy.
  Status save(const RunSnapshot& run);

  /// The outcome of the last save, once, as soon as it is there.
  std::optional<SaveOutcome> finished();
  /// The same, but waits for a save that is under way; nothing where there is none.
  std::optional<SaveOutcome> wait();

  /// Size of the copy.
  std::uint64_t memory_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace butterfly
