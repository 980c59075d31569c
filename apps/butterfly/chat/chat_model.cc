#include "chat/chat_model.h"

#include <algorithm>
#include <filesystem>

#include "butterfly/base/one_line.h"
#include "butterfly/base/read_file.h"
#include "butterfly/text/template/encode_chat.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFileBytes = std::size_t{64} << 20;
constexpr const char* kGroup = "The conversation";

Result<Json> read_json(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_file(path, kFileBytes));
  Json json = parse_ordered_json(text);
  if (json.is_discarded()) return make_error(ErrorCode::kBadData, "{}: is not valid JSON", path);
  return json;
}

Result<Json> read_list(const std::string& path) {
  if (path.empty()) return Json(nullptr);
  BF_ASSIGN_OR_RETURN(Json json, read_json(path));
  if (!json.is_array()) return make_error(ErrorCode::kBadData, "{}: is {}, expected a list", path, json.type_name());
  return json;
}

std::string names_of(const ChatSettings& settings) {
  std::string names;
  for (const auto& each : settings.templates)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", one_line(each.name));
  return names;
}

Result<std::string> template_source(const ChatFlags& flags, const ChatSettings& settings) {
  const ChatSettings::Named* found = settings.find(flags.chat_template);
  // As transformers does: a template for tools is for those who bring some.
  const ChatSettings::Named* with_tools = settings.find("tool_use");
  if (flags.chat_template.empty() && !flags.tools.empty() && with_tools != nullptr) found = with_tools;
  if (found != nullptr) return found->source;
  if (!flags.chat_template.empty()) {
    auto source = read_file(flags.chat_template, kFileBytes);
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

void add_chat_flags(Command command, ChatFlags& flags) {
  command
      .add_option("--chat-template", flags.chat_template,
                  "Jinja file, or the name of one of the model's templates [the model's default]")
      .group(kGroup);
  command.add_option("--system", flags.system, "What the model is told first").group(kGroup);
  command.add_option("--tools", flags.tools, "JSON file: a list of functions that the model may call").group(kGroup);
  command.add_option("--documents", flags.documents, "JSON file: a list of texts with titles for the template")
      .group(kGroup);
  command
      .add_option("--template-var", flags.variables,
                  "NAME=VALUE for the template, VALUE as JSON or text: enable_thinking=false")
      .takes_one_each_time()
      .group(kGroup);
}

Result<InferenceConfig> read_chat_config(const InferenceFlags& flags, ChatSettings& settings) {
  InferenceConfig standard;
  standard.request.tokens_max = 4096;
  BF_ASSIGN_OR_RETURN(const InferenceConfig first, read_config(flags, standard));
  BF_ASSIGN_OR_RETURN(settings, read_chat_settings(first.model));
  SamplingOptions& sampling = standard.request.sampling;
  sampling.temperature = settings.temperature.value_or(sampling.temperature);
  sampling.top_k = settings.top_k.value_or(sampling.top_k);
  sampling.top_p = settings.top_p.value_or(sampling.top_p);
  sampling.min_p = settings.min_p.value_or(sampling.min_p);
  sampling.repeat_penalty = settings.repeat_penalty.value_or(sampling.repeat_penalty);
  BF_TRY(validate(sampling));
  return read_config(flags, standard);
}

Result<ChatInput> read_conversation(const std::string& path) {
  BF_ASSIGN_OR_RETURN(Json json, read_json(path));
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

Result<ChatModel> ChatModel::create(const ChatFlags& flags, const ChatSettings& settings) {
  BF_ASSIGN_OR_RETURN(std::string source, template_source(flags, settings));
  BF_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::parse(std::move(source)));
  ChatModel model(std::move(parsed));
  model.standard_.special_tokens = settings.special_tokens;
  BF_ASSIGN_OR_RETURN(model.standard_.tools, read_list(flags.tools));
  BF_ASSIGN_OR_RETURN(model.standard_.documents, read_list(flags.documents));
  for (const std::string& variable : flags.variables) {
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) {
      return make_error(ErrorCode::kInvalidArgument, "--template-var is \"{}\", expected NAME=VALUE",
                        one_line(variable));
    }
    const std::string value = variable.substr(equals + 1);
    Json json = parse_ordered_json(value);
    model.standard_.variables[variable.substr(0, equals)] = json.is_discarded() ? Json(value) : std::move(json);
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

Result<ChatModel::Prompt> ChatModel::prompt(const Tokenizer& tokenizer, const Json& messages) const {
  ChatInput input;
  input.messages = messages;
  BF_ASSIGN_OR_RETURN(const MarkedText text, render(std::move(input)));
  Prompt prompt;
  BF_ASSIGN_OR_RETURN(prompt.tokens, encode_chat(tokenizer, template_, text));
  if (prompt.tokens.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the template makes no text of this conversation");
  }
  prompt.answer = {.format = find_answer_format(template_.source()),
                   .in_reasoning = opens_reasoning(text.bytes),
                   .tools = !standard_.tools.is_null()};
  prompt.shown = answer_tokens(tokenizer.vocabulary(), prompt.answer.format);
  return prompt;
}

void AnswerRecord::add(const AnswerEvent& event) {
  if (event.kind == AnswerEvent::Kind::kContent) content_ += event.text;
  if (event.kind == AnswerEvent::Kind::kReasoning) reasoning_ += event.text;
  if (event.kind == AnswerEvent::Kind::kCall) calls_.push_back(event.call);
}

Json call_message(const ToolCall& call) {
  Json arguments = parse_ordered_json(call.arguments);
  if (arguments.is_discarded()) arguments = call.arguments;
  return {
      {"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}};
}

Json AnswerRecord::message() const {
  Json message = {{"role", "assistant"}, {"content", content_}};
  if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
  for (const ToolCall& call : calls_) message["tool_calls"].push_back(call_message(call));
  return message;
}

}  // namespace butterfly::app
