#include "butterfly/infer/chat/chat_model.h"

#include <algorithm>
#include <filesystem>

#include "butterfly/base/read_file.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/encode_chat.h"

namespace butterfly {
namespace {

constexpr std::size_t kChatFileBytes = std::size_t{64} << 20;

Result<nlohmann::ordered_json> read_json(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_file(path, kChatFileBytes));
  nlohmann::ordered_json json = parse_ordered_json(text);
  if (json.is_discarded()) return make_error(ErrorCode::kBadData, "{}: is not valid JSON", path);
  return json;
}

Result<nlohmann::ordered_json> read_list(const std::string& path) {
  if (path.empty()) return nlohmann::ordered_json(nullptr);
  BF_ASSIGN_OR_RETURN(nlohmann::ordered_json json, read_json(path));
  if (!json.is_array()) return make_error(ErrorCode::kBadData, "{}: is {}, expected a list", path, json.type_name());
  return json;
}

std::string names_of(const ChatSettings& settings) {
  std::string names;
  for (const auto& each : settings.templates)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", one_line(each.name));
  return names;
}

Result<std::string> template_source(const ChatOptions& options, const ChatSettings& settings) {
  const ChatSettings::Named* found = settings.find(options.chat_template);
  // As transformers does: a template for tools is for those who bring some.
  const ChatSettings::Named* with_tools = settings.find("tool_use");
  if (options.chat_template.empty() && !options.tools.empty() && with_tools != nullptr) found = with_tools;
  if (found != nullptr) return found->source;
  if (!options.chat_template.empty()) {
    auto source = read_file(options.chat_template, kChatFileBytes);
    if (source || settings.templates.empty()) return source;
    return make_error(source.error().code, "{}; templates of the model: {}", source.error().message,
                      names_of(settings));
  }
  if (!settings.templates.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the model has no default chat template but {}: choose one with --chat-template",
                      names_of(settings));
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "the model has no chat template: give one with --chat-template FILE, or continue plain text "
                    "with butterfly generate, without --chat");
}

}  // namespace

Result<ChatInput> read_conversation(const std::string& path) {
  BF_ASSIGN_OR_RETURN(nlohmann::ordered_json json, read_json(path));
  ChatInput input;
  if (json.is_array()) {
    input.messages = std::move(json);
    return input;
  }
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    return make_error(ErrorCode::kBadData, "{}: is {}, expected a list of messages, or an object that has them", path,
                      json.is_object() ? "an object without a list of messages" : json.type_name());
  }
  input.messages = json["messages"];
  if (json.contains("tools")) input.tools = json["tools"];
  if (json.contains("documents")) input.documents = json["documents"];
  if (json.contains("variables")) input.variables = json["variables"];
  const auto prompt = json.find("add_generation_prompt");
  if (prompt != json.end() && prompt->is_boolean()) input.add_generation_prompt = prompt->get<bool>();
  const auto now = json.find("now");
  if (now != json.end() && now->is_number_unsigned()) input.now = now->get<std::time_t>();
  if (json.contains("special") && json["special"].is_object()) {
    for (const auto& [name, text] : json["special"].items()) {
      if (text.is_string()) input.special_tokens.emplace_back(name, text.get<std::string>());
    }
  }
  return input;
}

Result<ChatModel> ChatModel::create(const ChatOptions& options, const ChatSettings& settings) {
  BF_ASSIGN_OR_RETURN(std::string source, template_source(options, settings));
  BF_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::parse(std::move(source)));
  ChatModel model(std::move(parsed));
  model.standard_.special_tokens = settings.special_tokens;
  BF_ASSIGN_OR_RETURN(model.standard_.tools, read_list(options.tools));
  BF_ASSIGN_OR_RETURN(model.standard_.documents, read_list(options.documents));
  for (const std::string& variable : options.variables) {
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) {
      return make_error(ErrorCode::kInvalidArgument, "--template-var is \"{}\", expected NAME=VALUE",
                        one_line(variable));
    }
    const std::string value = variable.substr(equals + 1);
    nlohmann::ordered_json json = parse_ordered_json(value);
    model.standard_.variables[variable.substr(0, equals)] =
        json.is_discarded() ? nlohmann::ordered_json(value) : std::move(json);
  }
  return model;
}

Result<MarkedText> ChatModel::render(ChatInput input) const {
  if (input.special_tokens.empty()) input.special_tokens = standard_.special_tokens;
  if (input.tools.is_null()) input.tools = standard_.tools;
  if (input.documents.is_null()) input.documents = standard_.documents;
  for (const auto& [name, value] : standard_.variables.items()) {
    if (!input.variables.contains(name)) input.variables[name] = value;
  }
  return template_.render(input);
}

Result<std::vector<TokenId>> ChatModel::encode(const Tokenizer& tokenizer, const MarkedText& text) const {
  return encode_chat(tokenizer, template_, text);
}

Result<ChatModel::Prompt> ChatModel::prompt(const Tokenizer& tokenizer, const nlohmann::ordered_json& messages) const {
  ChatInput input;
  input.messages = messages;
  return prompt(tokenizer, std::move(input));
}

Result<ChatModel::Prompt> ChatModel::prompt(const Tokenizer& tokenizer, ChatInput input) const {
  const bool tools = !input.tools.is_null() || !standard_.tools.is_null();
  BF_ASSIGN_OR_RETURN(const MarkedText text, render(std::move(input)));
  Prompt prompt;
  BF_ASSIGN_OR_RETURN(prompt.tokens, encode_chat(tokenizer, template_, text));
  if (prompt.tokens.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the template makes no text of this conversation");
  }
  prompt.answer = {
      .format = find_answer_format(template_.source()), .reasoning = opened_reasoning(text.bytes), .tools = tools};
  prompt.shown = answer_tokens(tokenizer.vocabulary(), prompt.answer.format);
  return prompt;
}

void AnswerRecord::add(const AnswerEvent& event) {
  if (event.kind == AnswerEvent::Kind::kContent) content_ += event.text;
  if (event.kind == AnswerEvent::Kind::kReasoning) reasoning_ += event.text;
  if (event.kind == AnswerEvent::Kind::kCall) calls_.push_back(event.call);
}

nlohmann::ordered_json call_message(const ToolCall& call) {
  nlohmann::ordered_json arguments = parse_ordered_json(call.arguments);
  if (arguments.is_discarded()) arguments = call.arguments;
  return {
      {"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}};
}

nlohmann::ordered_json AnswerRecord::message() const {
  nlohmann::ordered_json message = {{"role", "assistant"}, {"content", content_}};
  if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
  for (const ToolCall& call : calls_) message["tool_calls"].push_back(call_message(call));
  return message;
}

}  // namespace butterfly
