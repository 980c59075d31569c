// Values of settings: how they are called, read from the text of a flag and written as TOML. Plain functions,
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace butterfly {

/// A flag, a whole number, a number, a text, texts, numbers; a whole number up to 2^64 - 1.
using KeyValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>, std::vector<double>, std::uint64_t>;

/// How a flag holds several texts: separated by commas, or one for each time that it is given.
enum class ListForm : std::uint8_t { kCommas, kRepeated };

bool is_list(const KeyValue& value);

/// "a whole number", "true or false", ...: what a value of this alternative is called.
std::string_view kind_of(const KeyValue& value);

/// As TOML writes it.
std::string to_toml(const KeyValue& value);

/// The text of a flag as the alternative that `kind` holds; nothing where it is something else.
std::optional<KeyValue> parse_value(const std::string& text, const KeyValue& kind, ListForm form = ListForm::kCommas);

}  // namespace butterfly
