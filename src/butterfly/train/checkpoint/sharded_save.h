// Saving a run whose ranks each hold a part of it. Every rank writes its part into the folder, or sends it to rank 0 to
// be written there. Called by the training threads of all ranks together.
#pragma once

#include <cstdint>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/train/checkpoint/checkpoint_files.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Who has the folder of the checkpoints.
enum class FolderOf : std::uint8_t { kAllRanks, kRankZero };

struct ShardedSave {
  Collectives& collectives;
  CheckpointFiles& files;
  const std::string& directory;  // rank 0's; with kAllRanks everyone's
  FolderOf folder = FolderOf::kAllRanks;
  int keep = 1;
};

/// The arrays of `run` have ranges, none of them on two ranks. On every rank the path, or what went wrong first on one
/// of them: nothing of a checkpoint is left then. Errors: those of write_checkpoint(), and those of the collectives
/// (ends_epoch()).
Result<std::string> save_shards(const ShardedSave& save, const RunSnapshot& run);

/// The same in two halves, between which each rank writes its part into the folder that the first one returns, which
/// all ranks see. Errors as above; of `mine` they become all ranks'. The arrays of `run` are not looked at.
Result<std::string> begin_shards(const ShardedSave& save, std::int64_t step);
Result<std::string> complete_shards(const ShardedSave& save, const RunSnapshot& run, const std::string& folder,
                                    const Result<std::vector<CheckpointFile>>& mine);

}  // namespace butterfly
