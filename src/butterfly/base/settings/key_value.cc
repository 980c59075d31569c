#include "butterfly/base/settings/key_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace butterfly {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      result.append("\\").push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      result += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      result.push_back(c);
    }
  }
  return result + "\"";
}

/// TOML tells numbers from whole numbers by the point or the exponent.
std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

template <typename T, typename... Base>
bool parse_number(std::string_view text, T& value, Base... base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string> comma_parts(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Reads a text into the alternative that it is called with; false where it is none.
struct Parser {
  const std::string& text;
  ListForm form;

  bool operator()(bool& value) const {
    value = text == "true";
    return text == "true" || text == "false";
  }
  bool operator()(std::int64_t& value) const { return parse_number(text, value); }
  bool operator()(std::uint64_t& value) const {
    const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    return parse_number(std::string_view(text).substr(hexadecimal ? 2 : 0), value, hexadecimal ? 16 : 10);
  }
  bool operator()(double& value) const { return parse_number(text, value) && std::isfinite(value); }
  bool operator()(std::string& value) const {
    value = text;
    return true;
  }
  bool operator()(std::vector<std::string>& value) const {
    value = form == ListForm::kCommas ? comma_parts(text) : std::vector<std::string>{text};
    return true;
  }
  bool operator()(std::vector<double>& value) const {
    value.clear();
    return std::ranges::all_of(comma_parts(text), [&](const std::string& part) {
      return parse_number(part, value.emplace_back()) && std::isfinite(value.back());
    });
  }
};

struct Writer {
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
  std::string operator()(std::uint64_t number) const { return fmt::format("{}", number); }
  std::string operator()(double number) const { return number_text(number); }
  std::string operator()(const std::string& text) const { return quoted(text); }
  std::string operator()(const std::vector<std::string>& texts) const {
    std::vector<std::string> parts;
    for (const std::string& text : texts) parts.push_back(quoted(text));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  std::string operator()(const std::vector<double>& numbers) const {
    std::vector<std::string> parts;
    for (double number : numbers) parts.push_back(number_text(number));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
};

}  // namespace

bool is_list(const KeyValue& value) {
  return std::holds_alternative<std::vector<std::string>>(value) || std::holds_alternative<std::vector<double>>(value);
}

std::string_view kind_of(const KeyValue& value) {
  constexpr std::array<std::string_view, 7> kKinds{"true or false",   "a whole number",    "a number",      "a text",
                                                   "a list of texts", "a list of numbers", "a whole number"};
  static_assert(kKinds.size() == std::variant_size_v<KeyValue>);
  return kKinds[value.index()];
}

std::string to_toml(const KeyValue& value) {
  return std::visit(Writer{}, value);
}

std::optional<KeyValue> parse_value(const std::string& text, const KeyValue& kind, ListForm form) {
  KeyValue value = kind;
  if (!std::visit(Parser{text, form}, value)) return std::nullopt;
  return value;
}

}  // namespace butterfly
