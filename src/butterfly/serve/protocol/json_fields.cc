#include "butterfly/serve/protocol/json_fields.h"

#include "butterfly/base/json.h"
#include "butterfly/base/text/nearest_word.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

bool is_nested_within(std::string_view text, int depth) {
  int now = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '{' || c == '[') && ++now > depth) return false;
    if (c == '}' || c == ']') --now;
  }
  return true;
}

std::optional<ApiError> parse_body(std::string_view text, ApiJson& body) {
  if (const auto at = find_invalid_utf8(text)) {
    return ApiError{.message = fmt::format("the body is no UTF-8: byte {} belongs to no character", *at),
                    .code = "invalid_json"};
  }
  if (!is_nested_within(text, kJsonDepthMax)) {
    return ApiError{.message = fmt::format("the body nests objects and lists deeper than {}", kJsonDepthMax),
                    .code = "invalid_json"};
  }
  body = parse_ordered_json(text);
  if (body.is_discarded()) return ApiError{.message = "the body is no valid JSON", .code = "invalid_json"};
  if (!body.is_object()) {
    return ApiError{.message = fmt::format("the body is {}, expected an object", body.type_name()),
                    .code = "invalid_type"};
  }
  return std::nullopt;
}

JsonFields::JsonFields(const ApiJson& object, std::string path, std::optional<ApiError>& error)
    : object_(object), path_(std::move(path)), error_(error) {}

void JsonFields::fail(const std::string& name, const std::string& message, const char* code) {
  if (!error_) error_ = ApiError{.message = message, .param = path_of(name), .code = code};
}

bool JsonFields::wrong_type(const char* name, const ApiJson& value, const char* wanted) {
  const char* found = value.is_number_float() ? "a fraction" : value.type_name();
  fail(name, fmt::format("{} is {}, expected {}", path_of(name), found, wanted), "invalid_type");
  return false;
}

const ApiJson* JsonFields::find(const char* name) {
  known_.insert(name);
  if (error_) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::read(const char* name, bool& value) {
  const ApiJson* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_boolean()) return wrong_type(name, *found, "true or false");
  value = found->get<bool>();
  return true;
}

bool JsonFields::read(const char* name, std::string& value) {
  const ApiJson* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_string()) return wrong_type(name, *found, "a string");
  value = found->get_ref<const std::string&>();
  return true;
}

bool JsonFields::read(const char* name, float& value, const NumberRange& range) {
  const ApiJson* found = find(name);
  if (found == nullptr) return false;
  if (!found->is_number()) return wrong_type(name, *found, "a number");
  const auto number = found->get<double>();
  if (!(number >= range.least && number <= range.most)) {
    fail(name, fmt::format("{} is {}, expected {} to {}", path_of(name), number, range.least, range.most));
    return false;
  }
  value = static_cast<float>(number);
  return true;
}

bool JsonFields::read(const char* name, std::int64_t& value, const NumberRange& range) {
  const ApiJson* found = find(name);
  if (found == nullptr) return false;
  const bool whole = found->is_number_integer() ||
                     (found->is_number_float() && std::abs(found->get<double>()) < 1e15 &&
                      found->get<double>() == static_cast<double>(static_cast<std::int64_t>(found->get<double>())));
  if (!whole) return wrong_type(name, *found, "a whole number");
  const auto number = found->get<double>();
  if (!(number >= range.least && number <= range.most)) {
    fail(name, fmt::format("{} is {}, expected {} to {}", path_of(name), dump_json(*found), range.least, range.most));
    return false;
  }
  value = found->is_number_float() ? static_cast<std::int64_t>(number) : found->get<std::int64_t>();
  return true;
}

bool JsonFields::read(const char* name, std::vector<std::string>& value, std::size_t most) {
  const ApiJson* found = find(name);
  if (found == nullptr) return false;
  value.clear();
  if (found->is_string()) {
    value.push_back(found->get<std::string>());
    return true;
  }
  if (!found->is_array()) return wrong_type(name, *found, "a string or a list of strings");
  if (found->size() > most) {
    fail(name, fmt::format("{} has {} strings, at most {} are taken", path_of(name), found->size(), most));
    return false;
  }
  for (const ApiJson& each : *found) {
    if (!each.is_string()) return wrong_type(name, each, "a list of strings");
    value.push_back(each.get<std::string>());
  }
  return true;
}

const ApiJson* JsonFields::list(const char* name) {
  const ApiJson* found = find(name);
  if (found != nullptr && !found->is_array()) wrong_type(name, *found, "a list");
  return ok() ? found : nullptr;
}

const ApiJson* JsonFields::object(const char* name) {
  const ApiJson* found = find(name);
  if (found != nullptr && !found->is_object()) wrong_type(name, *found, "an object");
  return ok() ? found : nullptr;
}

const std::string& JsonFields::required(const char* name) {
  static const std::string none;
  const ApiJson* found = find(name);
  if (found != nullptr && found->is_string()) return found->get_ref<const std::string&>();
  if (found != nullptr) {
    wrong_type(name, *found, "a string");
  } else {
    fail(name, fmt::format("{} is missing", path_of(name)), "missing_required_parameter");
  }
  return none;
}

void JsonFields::ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.insert(name);
}

void JsonFields::refuse(const char* name, const ApiJson& harmless, const char* why) {
  const ApiJson* found = find(name);
  if (found == nullptr || *found == harmless) return;
  fail(name, fmt::format("{} is not supported: {}", path_of(name), why), "unsupported_parameter");
}

void JsonFields::finish() {
  if (error_) return;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::vector<std::string> names(known_.begin(), known_.end());
    const std::string near = nearest_word(name, names);
    fail(one_line(name.substr(0, 100)),
         fmt::format("{} is no parameter that is known here{}", one_line(path_of(name.substr(0, 100))),
                     near.empty() ? "" : "; did you mean " + path_of(near) + "?"),
         "unknown_parameter");
    return;
  }
}

}  // namespace butterfly
