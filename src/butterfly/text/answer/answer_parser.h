// Takes an answer apart while it comes: what is said, what was reasoned before, and calls of tools. One per answer; not
// thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/text/answer/answer_format.h"
#include "butterfly/text/answer/tool_calls.h"

namespace butterfly {

struct AnswerEvent {
  /// kArguments: more of the arguments of the last call, by those who tell of a call before it is whole.
  enum class Kind : std::uint8_t { kContent, kReasoning, kCall, kArguments };
  Kind kind = Kind::kContent;
  std::string text;  // of all but a call
  ToolCall call;     // with an id; an AnswerParser's are whole
};

struct AnswerOptions {
  AnswerFormat format = AnswerFormat::kTags;
  const AnswerTag* reasoning = nullptr;  // that the prompt opened (opened_reasoning)
  /// Without tools an answer that looks like a call is one that speaks of it.
  bool tools = true;
};

class AnswerParser {
 public:
  explicit AnswerParser(const AnswerOptions& options);

  /// What is certain after this piece of text. The pieces may end anywhere.
  std::vector<AnswerEvent> push(std::string_view text);

  /// What was held back, at the end of the answer. What began as a call and is none is content.
  std::vector<AnswerEvent> finish();

 private:
  enum class State : std::uint8_t { kContent, kReasoning, kCalls, kHeader, kBody, kWhole };

  bool step(bool at_end);
  bool step_content(bool at_end);
  bool step_reasoning(bool at_end);
  std::size_t end_of_calls(std::string_view word, bool at_end) const;
  bool step_calls(bool at_end);
  bool step_header(bool at_end);
  bool step_body(bool at_end);
  bool step_whole(bool at_end);
  const AnswerTag* next_tag(std::size_t& at) const;
  std::size_t certain(const std::vector<std::string_view>& words) const;
  bool release(std::size_t bytes, AnswerEvent::Kind kind);
  void emit(std::string_view text, AnswerEvent::Kind kind);
  void emit_calls(std::string_view raw, std::string_view body);
  void emit_call(ToolCall call);
  void begin_body(std::string_view header);

  const AnswerOptions options_;
  State state_ = State::kContent;
  const AnswerTag* tag_ = nullptr;  // that is open
  std::string buffer_;
  std::string recipient_;  // of a body; empty: the reader
  AnswerEvent::Kind body_kind_ = AnswerEvent::Kind::kContent;
  bool said_ = false;  // content came already: reasoning only begins an answer
  bool skip_space_ = false;
  std::size_t searched_ = 0;  // of the buffer, for a closing tag
  int calls_ = 0;
  std::vector<AnswerEvent> events_;
};

}  // namespace butterfly
