#include "butterfly/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <string_view>

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
  std::string unit;
  for (; *end != '\0'; ++end) {
    if (*end != ' ') unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*end)));
  }
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kPrefixes = "KMGT";
    const std::size_t prefix = kPrefixes.find(unit.front());
    const std::string rest = unit.substr(1);
    if (prefix == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "IB")) return 0;
    scale = std::ldexp(1.0, 10 * (static_cast<int>(prefix) + 1));
  }
  const double bytes = value * scale;
  return bytes < 0x1p63 ? static_cast<std::uint64_t>(bytes) : 0;
}

}  // namespace butterfly
