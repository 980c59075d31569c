// A chat template of a model: the Jinja that transformers' apply_chat_template() runs, in a sandbox with limits on
// steps, memory and depth. Immutable after parsing, thread-safe.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/base/result.h"
#include "butterfly/text/template/marked_text.h"

namespace butterfly {

namespace chat {
struct Template;
}

/// What a template is given. Texts in it come from messages but for `special_tokens`.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // objects with a role and a content
  nlohmann::ordered_json tools = nullptr;                             // JSON schemas of functions; null: none
  nlohmann::ordered_json documents = nullptr;                         // objects with title and text; null: none
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token" and its text
  bool add_generation_prompt = true;
  std::time_t now = 0;  // strftime_now(); 0: the clock
};

class ChatTemplate {
 public:
  /// Errors: kBadData naming the line; kUnsupported for tags that this library leaves out and for sizes beyond its own.
  static Result<ChatTemplate> parse(std::string source);

  /// The text for the model. Errors: kInvalidArgument naming line and expression, also for a template that takes too
  /// many steps or too much memory, and for a conversation that the template refuses.
  Result<MarkedText> render(const ChatInput& input) const;

  const std::string& source() const;

 private:
  explicit ChatTemplate(std::shared_ptr<const chat::Template> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const chat::Template> parsed_;  // shared: a template is copied with the models that have it
};

}  // namespace butterfly
