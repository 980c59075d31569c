// Diagnostics for people, always on stderr; stdout belongs to results. Level: BUTTERFLY_LOG=debug|info|warn|error|off.
// Thread-safe. Libraries log events worth a line (a peer joined); errors are returned, not logged.
#pragma once

#include <spdlog/spdlog.h>

namespace butterfly {

/// The project's logger, created on first use. Default level: warn.
spdlog::logger& log();

}  // namespace butterfly
