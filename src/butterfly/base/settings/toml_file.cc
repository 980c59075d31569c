#define TOML_IMPLEMENTATION
#include "butterfly/base/settings/toml_file.h"

#include <fmt/ranges.h>

#include <filesystem>
#include <sstream>

#include "butterfly/base/read_file.h"
#include "butterfly/base/text/nearest_word.h"

namespace butterfly {
Result<std::string> read_toml_text(const std::string& path, std::size_t bytes_max, std::string_view what) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return make_error(ErrorCode::kBadData, "{}: is a directory, expected {}", path, what);
  }
  return read_file(path, bytes_max);
}

Result<toml::table> parse_toml(const std::string& text, const std::string& name) {
  toml::parse_result result = toml::parse(text, name);
  if (result) return std::move(result).table();
  return make_error(ErrorCode::kBadData, "{}: line {}: {}", name, result.error().source().begin.line,
                    printable(result.error().description()));
}

std::string shown(const toml::node& node) {
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return printable(text.str());
}

tl::unexpected<Error> unknown_key(const std::string& where, std::string_view key, std::span<const std::string> known) {
  const std::string meant = nearest_word(key, known);
  return make_error(ErrorCode::kBadData, "{}: there is no key \"{}\"{}, there are {}", where, printable(key),
                    meant.empty() ? "" : fmt::format(" (is \"{}\" meant?)", meant), fmt::join(known, ", "));
}

}  // namespace butterfly
