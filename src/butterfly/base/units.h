// Numbers for people: "1.5 GiB", "12.3 ms". Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace butterfly {

/// 1536 -> "1.5 KiB". Binary units, at most one decimal.
std::string format_bytes(std::uint64_t bytes);

/// 0.0123 -> "12.3 ms". From nanoseconds to seconds.
std::string format_seconds(double seconds);

/// "512M", "2G", "4096", "1.5 GiB" -> bytes, in binary units; 0 where it is no size.
std::uint64_t parse_bytes(const std::string& text);

}  // namespace butterfly
