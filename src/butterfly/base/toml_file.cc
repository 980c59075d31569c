#define TOML_IMPLEMENTATION
#include "butterfly/base/toml_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <vector>

#include "butterfly/base/read_file.h"

namespace butterfly {
namespace {

/// Characters to insert, remove or replace to make one of the other (Levenshtein).
std::size_t edits(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The key that is meant where `key` has some wrong letters; empty where none is near.
std::string nearest(std::string_view key, std::span<const std::string> known) {
  constexpr std::size_t kLongest = 80;
  std::string found;
  if (key.size() > kLongest) return found;
  std::size_t fewest = key.size() / 3 + 2;
  for (const std::string& one : known) {
    const std::size_t count = edits(key, one);
    if (count == 0) return {};  // it is there, but not as what it should be
    if (count >= fewest) continue;
    found = one;
    fewest = count;
  }
  return found;
}

}  // namespace

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
  const std::string meant = nearest(key, known);
  return make_error(ErrorCode::kBadData, "{}: there is no key \"{}\"{}, there are {}", where, printable(key),
                    meant.empty() ? "" : fmt::format(" (is \"{}\" meant?)", meant), fmt::join(known, ", "));
}

}  // namespace butterfly
