// Conversations with a model: its template and settings, prompts, answers for the history. Used by one thread, but for
// ChatModel, whose constant members are thread-safe.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/base/result.h"
#include "butterfly/model/format/chat_settings.h"
#include "butterfly/text/answer/answer_parser.h"
#include "butterfly/text/template/chat_template.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct ChatOptions {
  std::string chat_template;  // a file, or the name of one of the model's
  std::string system;
  std::string tools;                   // a file
  std::string documents;               // a file
  std::vector<std::string> variables;  // NAME=VALUE
};

/// A conversation as a file has it: a list of messages, or an object with messages, tools, documents, variables and
/// add_generation_prompt. Errors: kNotFound, kIo, kBadData naming the file.
Result<ChatInput> read_conversation(const std::string& path);

class ChatModel {
 public:
  /// The template of the options, or the model's. Errors: kInvalidArgument where there is none, naming those there are;
  /// those of files and of templates.
  static Result<ChatModel> create(const ChatOptions& options, const ChatSettings& settings);

  struct Prompt {
    std::vector<TokenId> tokens;
    AnswerOptions answer;
    std::vector<TokenId> shown;  // for Request::shown
  };
  /// Errors: those of the template and of the tokenizer.
  Result<Prompt> prompt(const Tokenizer& tokenizer, const nlohmann::ordered_json& messages) const;
  Result<Prompt> prompt(const Tokenizer& tokenizer, ChatInput input) const;

  /// Errors: those of the tokenizer.
  Result<std::vector<TokenId>> encode(const Tokenizer& tokenizer, const MarkedText& text) const;

  /// The text for the model. `input` lacks what the options and the model give.
  Result<MarkedText> render(ChatInput input) const;

  const std::string& template_text() const { return template_.source(); }

 private:
  explicit ChatModel(ChatTemplate parsed) : template_(std::move(parsed)) {}

  ChatTemplate template_;
  ChatInput standard_;
};

/// An answer for the history: role, content, and where there are any reasoning_content and tool_calls.
class AnswerRecord {
 public:
  void add(const AnswerEvent& event);
  nlohmann::ordered_json message() const;
  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  std::string content_;
  std::string reasoning_;
  std::vector<ToolCall> calls_;
};

/// {"id", "type": "function", "function": {"name", "arguments"}}; arguments are an object, as templates want them.
nlohmann::ordered_json call_message(const ToolCall& call);

}  // namespace butterfly
