// Ranks as processes of this machine over TCP on loopback (ranks.h). Rank 0 is the calling process.
#pragma once

#include "butterfly/train/ranks/ranks.h"

namespace butterfly {

/// As train_with_ranks(), for at least two ranks.
Result<TrainResult> train_with_processes(const RunConfig& config, const TrainObserver& observer,
                                         const std::stop_token& stop, const RanksOptions& options);

}  // namespace butterfly
