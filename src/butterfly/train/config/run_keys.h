// The keys of a training run as a table: what run.toml, the flags of `butterfly train` and the page that documents them
// have in common. What values go together is validate()'s business. Immutable, thread-safe.
#pragma once

#include <vector>

#include "butterfly/base/settings/config_file.h"
#include "butterfly/train/config/run_config.h"

namespace butterfly {

using RunKey = ConfigKey<RunConfig>;

/// In the order of the documentation: keys without a table first.
const std::vector<RunKey>& run_keys();

}  // namespace butterfly
