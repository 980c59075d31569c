#include "butterfly/text/template/chat_template.h"

#include <algorithm>
#include <limits>

#include "butterfly/text/template/interpreter.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

using chat::Value;
using Json = nlohmann::ordered_json;

constexpr int kInputDepth = 80;

/// Roles that templates build control tokens of ("<|" + role + "|>"). Others are text like all else.
constexpr std::string_view kRoles[] = {"system", "user",    "assistant",   "tool",      "developer", "function",
                                       "model",  "ipython", "environment", "documents", "context"};

struct InputSize {
  std::size_t bytes = 0;
  std::size_t values = 0;
};

Status measure(const Json& json, InputSize& size, int depth) {
  if (depth > kInputDepth) {
    return make_error(ErrorCode::kInvalidArgument, "the conversation is nested more than {} deep", kInputDepth);
  }
  ++size.values;
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    if (const auto offset = find_invalid_utf8(text)) {
      return make_error(ErrorCode::kInvalidArgument, "the conversation is not valid UTF-8: byte 0x{:02X} at offset {}",
                        static_cast<unsigned char>(text[*offset]), *offset);
    }
    size.bytes += text.size();
  }
  if (json.is_array()) {
    for (const Json& item : json) BF_TRY(measure(item, size, depth + 1));
  }
  if (json.is_object()) {
    for (const auto& [key, member] : json.items()) {
      BF_TRY(measure(Json(key), size, depth + 1));
      BF_TRY(measure(member, size, depth + 1));
    }
  }
  return {};
}

/// Values of the conversation, within the budget of its rendering.
class Converter {
 public:
  explicit Converter(chat::Runtime& runtime) : runtime_(runtime) {}

  Result<Value> convert(const Json& json) {
    switch (json.type()) {
      case Json::value_t::boolean:
        return Value::boolean(json.get<bool>());
      case Json::value_t::number_integer:
        return Value::integer(json.get<std::int64_t>());
      case Json::value_t::number_unsigned: {
        const auto number = json.get<std::uint64_t>();
        if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
          return Value::number(static_cast<double>(number));
        }
        return Value::integer(static_cast<std::int64_t>(number));
      }
      case Json::value_t::number_float:
        return Value::number(json.get<double>());
      case Json::value_t::string:
        return runtime_.text(MarkedText(json.get<std::string>(), TextOrigin::kMessage));
      case Json::value_t::array:
        return list(json);
      case Json::value_t::object:
        return object(json);
      default:
        return Value::none();
    }
  }

  Result<Value> messages(const Json& json) {
    if (!json.is_array()) {
      return make_error(ErrorCode::kInvalidArgument, "the messages are {}, expected a list of objects",
                        json.type_name());
    }
    std::vector<Value> all;
    for (const Json& message : json) {
      if (!message.is_object()) {
        return make_error(ErrorCode::kInvalidArgument, "message {} is {}, expected an object", all.size(),
                          message.type_name());
      }
      BF_ASSIGN_OR_RETURN(Value converted, this->message(message));
      all.push_back(std::move(converted));
    }
    return runtime_.list(std::move(all));
  }

 private:
  Result<Value> list(const Json& json) {
    std::vector<Value> items;
    for (const Json& item : json) {
      BF_ASSIGN_OR_RETURN(Value value, convert(item));
      items.push_back(std::move(value));
    }
    return runtime_.list(std::move(items));
  }

  Status add(std::vector<chat::DictNode::Entry>& entries, const std::string& key, Value value) {
    BF_ASSIGN_OR_RETURN(Value name, runtime_.text(MarkedText(key, TextOrigin::kMessage)));
    entries.emplace_back(std::move(name), std::move(value));
    return {};
  }

  Result<Value> object(const Json& json) {
    std::vector<chat::DictNode::Entry> entries;
    for (const auto& [key, member] : json.items()) {
      BF_ASSIGN_OR_RETURN(Value value, convert(member));
      BF_TRY(add(entries, key, std::move(value)));
    }
    return runtime_.dict(std::move(entries));
  }

  /// Reasoning goes by three names; templates ask for one of the first two.
  Result<Value> message(const Json& json) {
    const Json* reasoning = nullptr;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      const auto found = json.find(name);
      if (reasoning == nullptr && found != json.end() && !found->is_null()) reasoning = &*found;
    }
    std::vector<chat::DictNode::Entry> entries;
    if (reasoning != nullptr) {
      BF_ASSIGN_OR_RETURN(Value value, convert(*reasoning));
      BF_TRY(add(entries, "thinking", std::move(value)));
    }
    for (const auto& [key, member] : json.items()) {
      if (member.is_null()) continue;  // templates know what to do without, but may write "None"
      BF_ASSIGN_OR_RETURN(Value value, convert(member));
      const bool known =
          key == "role" && value.is_string() && std::ranges::find(kRoles, value.str()) != std::end(kRoles);
      if (known) {
        BF_ASSIGN_OR_RETURN(value, runtime_.text(MarkedText(value.str())));
      }
      BF_TRY(add(entries, key, std::move(value)));
    }
    if (reasoning != nullptr) {
      BF_ASSIGN_OR_RETURN(Value value, convert(*reasoning));
      BF_TRY(add(entries, "reasoning_content", std::move(value)));
    }
    return runtime_.dict(std::move(entries));
  }

  chat::Runtime& runtime_;
};

Result<std::shared_ptr<chat::Scope>> globals_of(chat::Runtime& runtime, const ChatInput& input) {
  Converter converter(runtime);
  auto scope = std::make_shared<chat::Scope>();
  for (const auto& [name, text] : input.special_tokens) {
    BF_ASSIGN_OR_RETURN(scope->names[name], runtime.text(MarkedText(text)));
  }
  if (!input.variables.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "the template's variables are {}, expected an object",
                      input.variables.type_name());
  }
  for (const auto& [name, value] : input.variables.items()) {
    BF_ASSIGN_OR_RETURN(scope->names[name], converter.convert(value));
  }
  BF_ASSIGN_OR_RETURN(scope->names["messages"], converter.messages(input.messages));
  BF_ASSIGN_OR_RETURN(scope->names["tools"], converter.convert(input.tools));
  BF_ASSIGN_OR_RETURN(scope->names["documents"], converter.convert(input.documents));
  scope->names["add_generation_prompt"] = Value::boolean(input.add_generation_prompt);
  return scope;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  BF_ASSIGN_OR_RETURN(auto parsed, chat::parse_template(std::move(source)));
  return ChatTemplate(std::move(parsed));
}

Result<MarkedText> ChatTemplate::render(const ChatInput& input) const {
  InputSize size;
  for (const Json* part : {&input.messages, &input.tools, &input.documents, &input.variables}) {
    BF_TRY(measure(*part, size, 0));
  }
  TemplateBudget budget(size.bytes, size.values);
  chat::Runtime runtime(budget, input.now != 0 ? input.now : std::time(nullptr));
  BF_ASSIGN_OR_RETURN(auto globals, globals_of(runtime, input));
  chat::Interpreter interpreter(runtime, *parsed_);
  return interpreter.run(std::move(globals));
}

const std::string& ChatTemplate::source() const {
  return parsed_->source;
}

}  // namespace butterfly
