#include "butterfly/base/settings/config_key.h"

#include <fmt/format.h>

#include <charconv>

namespace butterfly {

std::string help_of(const KeyText& key) {
  if (key.range.is_open()) return key.help;
  return fmt::format("{} ({} to {})", key.help, key.range.least, key.range.most);
}

Status check_range(std::int64_t value, std::int64_t max, const KeyRange& range) {
  const std::int64_t least = range.least > 0 ? static_cast<std::int64_t>(range.least) : 0;
  const std::int64_t most = range.most < static_cast<double>(max) ? static_cast<std::int64_t>(range.most) : max;
  if (value >= least && value <= most) return {};
  return make_error(ErrorCode::kInvalidArgument, "expected a whole number from {} to {}", least, most);
}

Status check_range(double value, const KeyRange& range) {
  if (value >= range.least && value <= range.most) return {};
  return make_error(ErrorCode::kInvalidArgument, "expected a number from {} to {}", range.least, range.most);
}

double shortest_double(float value) {
  const std::string text = fmt::format("{}", value);
  double result = value;
  std::from_chars(text.data(), text.data() + text.size(), result);
  return result;
}

}  // namespace butterfly
