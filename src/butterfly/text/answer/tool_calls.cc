#include "butterfly/text/answer/tool_calls.h"

#include <algorithm>

#include "butterfly/base/json.h"

namespace butterfly {

namespace {

using Json = nlohmann::ordered_json;
using Calls = std::vector<ToolCall>;

constexpr auto kNowhere = std::string_view::npos;
constexpr int kJsonDepth = 200;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == kNowhere) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

/// Bytes of the JSON object or list at the front; 0 where it does not end, or is nested too deep.
std::size_t json_extent(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kJsonDepth) return 0;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return i + 1;
    }
    if (depth <= 0) return 0;
  }
  return 0;
}

std::string string_member(const Json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = object.find(name);
    if (found == object.end()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_number_integer()) return dump_json(*found);
  }
  return {};
}

std::optional<ToolCall> call_of(const Json& object) {
  if (!object.is_object()) return {};
  if (object.contains("function") && object["function"].is_object()) {
    auto inner = call_of(object["function"]);
    if (inner && inner->id.empty()) inner->id = string_member(object, {"id"});
    return inner;
  }
  ToolCall call;
  call.id = string_member(object, {"id", "tool_call_id", "call_id"});
  call.name = string_member(object, {"name", "tool_name", "function"});
  if (call.name.empty()) return {};
  call.arguments = "{}";
  bool found = false;
  for (const char* name : {"arguments", "parameters", "args"}) {
    if (!object.contains(name)) continue;
    found = true;
    const Json& given = object[name];
    // Some models write the object as text.
    if (given.is_string() && parse_ordered_json(given.get<std::string>()).is_object()) {
      call.arguments = given.get<std::string>();
    } else if (!given.is_null()) {
      call.arguments = dump_json(given);
    }
    break;
  }
  // An object with a name alone is data, unless it says that it is a call.
  const bool only = object.size() == 1 || (object.size() == 2 && !call.id.empty());
  if (!found && !only && string_member(object, {"type"}) != "function") return {};
  return call;
}

/// The text between `open` and `close`, and what follows; nothing where there is no `open`.
struct Between {
  std::string_view before;
  std::string_view inner;
  std::string_view after;
};

std::optional<Between> between(std::string_view text, std::string_view open, std::string_view close) {
  const std::size_t begin = text.find(open);
  if (begin == kNowhere) return {};
  const std::string_view rest = text.substr(begin + open.size());
  const std::size_t end = std::min(rest.find(close), rest.size());
  return Between{text.substr(0, begin), rest.substr(0, end), rest.substr(std::min(end + close.size(), rest.size()))};
}

/// What a parameter without quotes means: JSON where it is JSON, text otherwise.
Json loose_value(std::string_view text) {
  const std::string_view plain = trim(text);
  Json parsed = Json(Json::value_t::discarded);
  const bool nested = plain.starts_with('{') || plain.starts_with('[');
  if (!nested || json_extent(plain) == plain.size()) parsed = parse_ordered_json(plain);
  if (parsed.is_discarded() || parsed.is_string()) {
    // One line end belongs to the tags.
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    return parsed.is_string() && plain.starts_with('"') ? parsed : Json(std::string(text));
  }
  return parsed;
}

/// <function=name>, and JSON or <parameter=key>value</parameter> in it.
std::optional<Calls> read_function_tags(std::string_view text) {
  Calls calls;
  while (const auto function = between(text, "<function=", "</function>")) {
    const std::size_t end = function->inner.find('>');
    if (end == kNowhere) return {};
    const std::string_view name = function->inner.substr(0, end);
    std::string_view body = function->inner.substr(end + 1);
    Json arguments = Json::object();
    bool tagged = false;
    while (const auto parameter = between(body, "<parameter=", "</parameter>")) {
      const std::size_t key = parameter->inner.find('>');
      if (key == kNowhere) return {};
      arguments[std::string(parameter->inner.substr(0, key))] = loose_value(parameter->inner.substr(key + 1));
      tagged = true;
      body = parameter->after;
    }
    const bool plain = !tagged && !trim(body).empty();
    auto call = named_call(name, plain ? std::string(body) : dump_json(arguments));
    if (!call) return {};
    calls.push_back(std::move(*call));
    text = function->after;
  }
  if (calls.empty()) return {};
  return calls;
}

/// GLM-4.5: the name, then <arg_key>key</arg_key><arg_value>value</arg_value>.
std::optional<Calls> read_argument_tags(std::string_view text) {
  Json arguments = Json::object();
  const std::string_view name = trim(text.substr(0, text.find('<')));
  while (const auto key = between(text, "<arg_key>", "</arg_key>")) {
    const auto value = between(key->after, "<arg_value>", "</arg_value>");
    if (!value) return {};
    arguments[std::string(trim(key->inner))] = loose_value(value->inner);
    text = value->after;
  }
  auto call = named_call(name, dump_json(arguments));
  if (!call) return {};
  return Calls{std::move(*call)};
}

/// One call between tokens, with a token between name and arguments: DeepSeek, Kimi, Mistral.
struct TokenForm {
  std::string_view begin;
  std::string_view separator;
  std::string_view end;
};
constexpr TokenForm kTokenForms[] = {
    {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"},
    {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
};

std::string_view without_fence(std::string_view text) {
  text = trim(text);
  if (text.starts_with("```json")) text.remove_prefix(7);
  if (text.ends_with("```")) text.remove_suffix(3);
  return trim(text);
}

std::optional<Calls> read_token_calls(std::string_view text, const TokenForm& form) {
  Calls calls;
  while (const auto one = between(text, form.begin, form.end)) {
    text = one->after;
    const std::size_t cut = one->inner.find(form.separator);
    if (cut == kNowhere) return {};
    std::string_view name = trim(one->inner.substr(0, cut));
    std::string_view arguments = trim(one->inner.substr(cut + form.separator.size()));
    std::string id;
    if (name == "function" && !arguments.starts_with('{')) {  // DeepSeek V3: the kind, then the name on its line
      const std::size_t line = arguments.find('\n');
      name = trim(arguments.substr(0, line));
      arguments = line == kNowhere ? std::string_view("{}") : arguments.substr(line);
    }
    if (name.starts_with("functions.")) {  // Kimi: functions.name:0
      id = name;
      name.remove_prefix(10);
      name = name.substr(0, name.rfind(':'));
    }
    auto call = named_call(name, without_fence(arguments));
    if (!call) return {};
    call->id = id;
    calls.push_back(std::move(*call));
  }
  if (calls.empty()) return {};
  return calls;
}

/// Mistral since 2025: name[ARGS]{...}, perhaps with [CALL_ID]id before.
std::optional<Calls> read_args_call(std::string_view text) {
  const std::size_t cut = text.find("[ARGS]");
  if (cut == kNowhere) return {};
  std::string_view name = text.substr(0, cut);
  std::string id;
  if (const std::size_t at = name.find("[CALL_ID]"); at != kNowhere) {
    id = trim(name.substr(at + 9));
    name = name.substr(0, at);
  }
  auto call = named_call(trim(name), text.substr(cut + 6));
  if (!call) return {};
  call->id = id;
  return Calls{std::move(*call)};
}

/// Mistral's models sometimes write name{...}.
std::optional<Calls> read_prefixed_json(std::string_view text) {
  const std::size_t brace = text.find('{');
  if (brace == kNowhere || !is_function_name(trim(text.substr(0, brace)))) return {};
  const std::string_view arguments = trim(text.substr(brace));
  if (json_extent(arguments) != arguments.size()) return {};
  auto call = named_call(trim(text.substr(0, brace)), arguments);
  if (!call) return {};
  return Calls{std::move(*call)};
}

}  // namespace

bool is_function_name(std::string_view text) {
  constexpr std::size_t kNameMost = 200;
  if (text.empty() || text.size() > kNameMost) return false;
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':' || static_cast<unsigned char>(c) >= 0x80;
  });
}

std::optional<ToolCall> named_call(std::string_view name, std::string_view arguments) {
  if (!is_function_name(name)) return {};
  const std::string_view plain = trim(arguments);
  if (plain.empty()) return ToolCall{.id = {}, .name = std::string(name), .arguments = "{}"};
  const bool whole = plain.starts_with('{') && json_extent(plain) == plain.size();
  if (whole && parse_ordered_json(plain).is_object()) {
    return ToolCall{.id = {}, .name = std::string(name), .arguments = std::string(plain)};
  }
  return ToolCall{.id = {}, .name = std::string(name), .arguments = dump_json(Json{{"code", std::string(arguments)}})};
}

std::optional<std::vector<ToolCall>> read_json_calls(std::string_view text) {
  Calls calls;
  text = trim(text);
  while (!text.empty()) {
    const std::size_t size = json_extent(text);
    if (size == 0) return {};
    const Json parsed = parse_ordered_json(text.substr(0, size));
    if (parsed.is_discarded()) return {};
    const Json list = parsed.is_array() ? parsed : Json::array({parsed});
    for (const Json& each : list) {
      auto call = call_of(each);
      if (!call) return {};
      calls.push_back(std::move(*call));
    }
    text = trim(text.substr(size));
    if (text.starts_with(';') || text.starts_with(',')) text = trim(text.substr(1));
  }
  if (calls.empty()) return {};
  return calls;
}

std::optional<std::vector<ToolCall>> read_calls(std::string_view text) {
  const std::string_view plain = without_fence(text);
  if (plain.starts_with('{') || plain.starts_with('[')) {
    if (plain == "[]") return Calls{};
    if (auto calls = read_json_calls(plain)) return calls;
  }
  if (text.find("<function=") != kNowhere) return read_function_tags(text);
  for (const TokenForm& form : kTokenForms) {
    if (text.find(form.begin) != kNowhere) return read_token_calls(text, form);
  }
  if (text.find("[ARGS]") != kNowhere) return read_args_call(text);
  if (text.find("<arg_key>") != kNowhere) return read_argument_tags(text);
  if (auto calls = read_prefixed_json(plain)) return calls;
  if (is_function_name(plain)) return Calls{ToolCall{.id = {}, .name = std::string(plain), .arguments = "{}"}};
  return {};
}

}  // namespace butterfly
