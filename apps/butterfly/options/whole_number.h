// Options that are unsigned 64-bit numbers. Plain function.
#pragma once

#include <string>

namespace butterfly::app {

/// Empty for a whole number from 0 to 2^64 - 1, else what was expected. The command line's
/// own conversion wraps around: -1 and 2^64 would be 2^64 - 1.
std::string check_whole_number(const std::string& text);

}  // namespace butterfly::app
