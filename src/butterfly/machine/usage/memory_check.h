// Whether memory that is about to be touched is there: the system grants more than it has, and then ends the process.
// Plain function, thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "butterfly/base/result.h"

namespace butterfly {

/// Small amounts are not looked at; nor is anything where the system tells nothing. Errors: kNoMemory naming `what`,
/// how much it takes, how much is free and how much is missing.
Status check_memory(std::uint64_t bytes, std::string_view what);

}  // namespace butterfly
