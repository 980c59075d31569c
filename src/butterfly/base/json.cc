#include "butterfly/base/json.h"

BUTTERFLY_JSON_MEMBERS(, nlohmann::json)
BUTTERFLY_JSON_MEMBERS(, nlohmann::ordered_json)

namespace butterfly {

nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& watch) {
  return nlohmann::json::parse(text, watch, false);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  return nlohmann::ordered_json::parse(text, nullptr, false);
}

std::string dump_json(const nlohmann::json& value, const JsonStyle& style) {
  return value.dump(style.indent, ' ', style.ascii, nlohmann::json::error_handler_t::replace);
}

std::string dump_json(const nlohmann::ordered_json& value, const JsonStyle& style) {
  return value.dump(style.indent, ' ', style.ascii, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace butterfly
