#include <array>
#include <cmath>

#include <fmt/format.h>

#include "butterfly/base/units.h"
#include "butterfly/study/output/document.h"

namespace butterfly::study {

std::string percent_of(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string short_number(double value) {
  constexpr std::array kUnits{"", " k", " M", " G", " T", " P"};
  std::size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  if (unit == 0 && value == std::floor(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.{}f}{}", value, std::abs(value) < 10 ? 2 : std::abs(value) < 100 ? 1 : 0, kUnits[unit]);
}

std::string short_bytes(double bytes) {
  if (bytes < 0) return "-" + short_bytes(-bytes);
  return format_bytes(bytes < 1e18 ? static_cast<std::uint64_t>(bytes) : UINT64_MAX);
}

std::string with_interval(double seconds, double half_width) {
  if (half_width <= 0.0) return format_seconds(seconds);
  return fmt::format("{} +- {}", format_seconds(seconds), format_seconds(half_width));
}

std::string escape_markup(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return result;
}

}  // namespace butterfly::study
