// A training run that outlives the death of the process that leads it (--max-restarts): this process starts the leader,
// and when that is killed or crashes, another one, which goes on from the newest checkpoint.
#pragma once

#include <optional>

#include "butterfly/base/result.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly::app {

/// Set for the leader: how often it has been started before, as text. torchrun has TORCHELASTIC_RESTART_COUNT.
inline constexpr const char* kRestartCount = "BUTTERFLY_RESTART_COUNT";

/// Nothing where this process is to lead the run: no restarts are wanted, or it was started by lead_again(), and then
/// `config` goes on from the newest checkpoint there is. Else what the last leader ended with. Errors: kUnavailable
/// where it was killed once more than there are restarts; kIo.
Result<std::optional<int>> lead_again(RunConfig& config);

}  // namespace butterfly::app
