// Ranks on worker processes, on this machine or others (ranks.h). Rank 0 is the calling process, which computes too: it
// dials every worker, and nobody dials it.
#pragma once

#include "butterfly/train/ranks/ranks.h"

namespace butterfly {

/// As train_with_ranks(), with the workers of config.parallel as ranks 1, 2, .... They receive what the run is and the
/// tokens that they have not got; a continued model or a saved run as its state when the first epoch begins.
Result<TrainResult> train_with_workers(const RunConfig& config, const TrainObserver& observer,
                                       const std::stop_token& stop, const RanksOptions& options);

}  // namespace butterfly
