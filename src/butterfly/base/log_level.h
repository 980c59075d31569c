// Which lines of the log are written, changed while a program runs: for measurements of what they cost. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace butterfly {

/// A name that BUTTERFLY_LOG takes: debug, info, warn, error, off; others stand for off. Returns what held before.
std::string set_log_level(std::string_view name);

}  // namespace butterfly
