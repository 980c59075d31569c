// Whether a run may go on from a saved one: it must be the same run. Plain functions, thread-safe.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/train/config/run_config.h"
#include "butterfly/train/data/dataset.h"

namespace butterfly {

/// The checkpoint that config.resume names. What `config` leaves open and the saved run decided (seq, micro_batch) is
/// taken from there. Errors: those of open_run() and read_run_config().
Result<SavedRun> open_resumed(RunConfig& config);

/// What tells one corpus from another.
struct DataIdentity {
  DatasetStats stats{};
  std::string digest{};  // Dataset::digest(); empty: not looked at
};

/// Errors: kInvalidArgument naming the first key that decides bits and differs, with both values; or that shape or data
/// differ.
Status check_same_run(const SavedRun& saved, const RunConfig& config, const DataIdentity& data,
                      const ParameterSet& parameters);

/// A directory that holds checkpoints which a run from `step` on has not made would mix two runs. Errors:
/// kInvalidArgument naming the checkpoint.
Status check_directory(const std::string& directory, std::int64_t step);

}  // namespace butterfly
