// What readers of TOML files have in common: text, syntax, and sentences about what is wrong in them. Which keys there
// are and what their values mean is the readers' business. For .cc files: it brings toml++ in. Thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/base/text/printable.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 0  // toml_file.cc compiles the library
#include <toml++/toml.h>

namespace butterfly {

/// The whole file; `what` is "a cluster file". Errors: kNotFound; kIo; kBadData for a directory, or more than
/// `bytes_max` bytes.
Result<std::string> read_toml_text(const std::string& path, std::size_t bytes_max, std::string_view what);

/// `name` is the file's, for messages. Errors: kBadData naming the line.
Result<toml::table> parse_toml(const std::string& text, const std::string& name);

/// A value as the user wrote it, for messages.
std::string shown(const toml::node& node);

/// kBadData: `where` (file, and line or table) has a key that is none of `known`; names the one that it resembles most,
/// where one does, and all of them.
tl::unexpected<Error> unknown_key(const std::string& where, std::string_view key, std::span<const std::string> known);

}  // namespace butterfly
