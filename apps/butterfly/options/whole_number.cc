#include "options/whole_number.h"

#include <fmt/core.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>

namespace butterfly::app {

std::string check_whole_number(const std::string& text) {
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  const std::string_view digits = std::string_view(text).substr(hexadecimal ? 2 : 0);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, hexadecimal ? 16 : 10);
  if (error == std::errc() && end == digits.data() + digits.size()) return {};
  return fmt::format("expected a whole number from 0 to {}, got {}", std::numeric_limits<std::uint64_t>::max(), text);
}

}  // namespace butterfly::app
