// What the ranks of a run hold alike, and how those that are behind get it. Called by the training threads of all ranks
// together. `collectives` is null for one rank, and then there is nothing to do.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// Errors: kInvalidArgument where a rank's configuration has another fingerprint; those of the collectives.
Status check_same_configuration(Collectives* collectives, const std::string& fingerprint);

/// All ranks end with the state of the lowest rank that has done the most steps. `state` has step, updates and guard;
/// the arrays have the same lengths on every rank. Whether anything had to come from there. Errors: those of the
/// collectives.
Result<bool> agree_on_last_step(Collectives* collectives, RunState& state, std::span<const RunArray> arrays);

/// The error-feedback residuals of each rank (GradientReducer::residuals()), by rank and array.
using Residuals = std::vector<std::vector<AlignedBuffer>>;

/// Those of all ranks, on rank 0; nothing elsewhere. Errors: those of the collectives, kNoMemory.
Result<Residuals> gather_residuals(Collectives* collectives, std::span<const std::span<float>> mine);

/// The inverse. Rank 0 has residuals of as many ranks as there were; where that is another number than now, the sum of
/// all goes to rank 0, so that nothing that is residual is lost. Those of a rank that gets nothing stay as they are.
/// Errors: those of the collectives; kBadData for lengths that are not those of `mine`.
Status scatter_residuals(Collectives* collectives, Residuals saved, std::span<const std::span<float>> mine);

/// Every rank's text, all of one length, in rank order. Errors: those of the collectives.
Result<std::vector<std::string>> gather_texts(Collectives* collectives, const std::string& mine);

}  // namespace butterfly
