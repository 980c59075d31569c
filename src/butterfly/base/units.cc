#include "butterfly/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace butterfly {

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::uint64_t parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !(value >= 0) || !std::isfinite(value)) return 0;
  double scale = 1;
  switch (std::toupper(static_cast<unsigned char>(*end))) {
    case 'K':
      scale = 0x1p10;
      break;
    case 'M':
      scale = 0x1p20;
      break;
    case 'G':
      scale = 0x1p30;
      break;
    case 'T':
      scale = 0x1p40;
      break;
    case 'B':
    case '\0':
      break;
    default:
      return 0;
  }
  const double bytes = value * scale;
  return bytes < 0x1p63 ? static_cast<std::uint64_t>(bytes) : 0;
}

}  // namespace butterfly
