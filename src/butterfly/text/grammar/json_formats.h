// Formats of strings that JSON Schema names, as regular expressions of whole strings. Each covers a part of what the
// format allows that every reader takes, bounded in length. Plain functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace butterfly {

/// date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid; empty for any other.
std::string json_format_pattern(std::string_view format);

/// "date-time, date, ..."
std::string_view json_format_names();

}  // namespace butterfly
