// Answers in the shapes of OpenAI's endpoints, as events of a stream or as one object. What comes out depends on what
// is put in alone, event by event, so that an answer that is computed again has the same bytes. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/infer/request/request.h"
#include "butterfly/serve/protocol/forced_calls.h"
#include "butterfly/serve/protocol/generation_body.h"
#include "butterfly/text/answer/answer_parser.h"

namespace butterfly {

struct ShownLogprob {
  std::string token{};  // its bytes
  double logprob = 0;
};

/// A token, and the text that is complete with it.
struct AnswerPiece {
  std::string text{};
  bool is_token = true;  // false: text that was held back, at the end
  ShownLogprob shown{};
  std::vector<ShownLogprob> top{};
  bool has_logprob = true;  // false for the first token of a prompt
};

struct AnswerUsage {
  std::size_t prompt_tokens = 0;
  std::size_t generated_tokens = 0;
  std::size_t cached_tokens = 0;
};

struct AnswerSettings {
  std::string id{};
  std::int64_t created = 0;
  std::string model{};
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  bool show_cached = true;  // in the usage; never in streams, whose bytes do not depend on what was cached
  std::size_t choices = 1;
  // Of conversations.
  AnswerOptions parser{};
  ToolChoice tool_choice{};  // named or required: the text is the call
  bool parallel_tool_calls = true;
  ApiJson shown{};  // what a response repeats of its request
};

class AnswerWriter {
 public:
  explicit AnswerWriter(AnswerSettings settings) : settings_(std::move(settings)) {}
  virtual ~AnswerWriter() = default;

  /// Before the first piece: what is always sent first.
  virtual void begin() {}
  /// The prompt, where it is part of the answer.
  virtual void prompt(std::size_t, const std::string&, const std::vector<AnswerPiece>&) {}
  virtual void piece(std::size_t choice, const AnswerPiece& piece) = 0;
  virtual void end(std::size_t choice, FinishReason reason) = 0;
  /// After the end of all choices.
  virtual void finish(const AnswerUsage& usage) = 0;
  /// Instead, where computing failed.
  virtual void fail(const ApiError& error);
  /// The answer as one object.
  virtual ApiJson whole(const AnswerUsage& usage) = 0;

  /// What is to be sent: "data: ...\n\n", perhaps with a line "event: ..." before.
  std::vector<std::string> take_events() { return std::exchange(events_, {}); }

 protected:
  void emit(const ApiJson& data);
  void emit_done() { events_.emplace_back("data: [DONE]\n\n"); }
  void emit_named(const std::string& name, const ApiJson& data);
  ApiJson usage_json(const AnswerUsage& usage, std::size_t reasoning_tokens) const;
  const AnswerSettings settings_;

 private:
  std::vector<std::string> events_;
};

std::unique_ptr<AnswerWriter> make_chat_writer(AnswerSettings settings);
std::unique_ptr<AnswerWriter> make_completion_writer(AnswerSettings settings);
std::unique_ptr<AnswerWriter> make_response_writer(AnswerSettings settings);
std::unique_ptr<AnswerWriter> make_answer_writer(Endpoint endpoint, AnswerSettings settings);

/// Text into content, reasoning and calls: by the model's own tags, or as forced calls have them, which are told of
/// before they are whole.
class AnswerSplitter {
 public:
  AnswerSplitter(const AnswerSettings& settings, std::size_t choice);
  std::vector<AnswerEvent> push(const std::string& text);
  std::vector<AnswerEvent> finish();

 private:
  std::vector<AnswerEvent> named(std::vector<AnswerEvent> events);
  std::vector<AnswerEvent> read_forced(std::vector<AnswerEvent> events);

  const bool is_forced_;
  const bool reasons_;      // first
  const std::string seed_;  // of the ids of calls
  const bool parallel_;
  AnswerParser parser_;
  ForcedCalls forced_;
  int calls_ = 0;
  bool passed_over_ = false;  // the last call
};

/// {"token", "logprob", "bytes", "top_logprobs"} of a conversation's logprobs.
ApiJson logprob_json(const AnswerPiece& piece);
/// "stop", "length", "tool_calls".
std::string finish_reason(FinishReason reason, bool calls);

}  // namespace butterfly
