// JSON without its price: what is dear and common of nlohmann-json is compiled once, in json.cc, for every file that
// includes this header instead of the library's. parse_json() and dump_json() stand for its parse() and dump(), which a
// file that calls them compiles again. Thread-safe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Not the whole class: its other formats (CBOR, BSON, patches, ...) alone take 8 s of compiling.
#define BUTTERFLY_JSON_MEMBERS(EXTERN, JSON)                                           \
  EXTERN template JSON::basic_json(const JSON&);                                       \
  EXTERN template JSON::basic_json(JSON::initializer_list_t, bool, JSON::value_t);     \
  EXTERN template JSON::~basic_json() noexcept;                                        \
  EXTERN template JSON& JSON::operator[](JSON::object_t::key_type);                    \
  EXTERN template const JSON& JSON::operator[](const JSON::object_t::key_type&) const; \
  EXTERN template const JSON& JSON::at(const JSON::object_t::key_type&) const;         \
  EXTERN template void JSON::push_back(JSON&&);                                        \
  EXTERN template void JSON::json_value::destroy(JSON::value_t);
BUTTERFLY_JSON_MEMBERS(extern, nlohmann::json)
BUTTERFLY_JSON_MEMBERS(extern, nlohmann::ordered_json)

namespace butterfly {

/// A discarded value (is_discarded()) where the text is no JSON. `watch` may drop parts, as the library describes.
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& watch = nullptr);

/// The same with the members of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

struct JsonStyle {
  int indent = -1;     // spaces; -1: all on one line
  bool ascii = false;  // escapes all else
};

/// Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::json& value, const JsonStyle& style = {});
std::string dump_json(const nlohmann::ordered_json& value, const JsonStyle& style = {});

}  // namespace butterfly
