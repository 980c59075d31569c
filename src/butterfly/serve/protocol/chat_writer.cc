// /v1/chat/completions: "chat.completion" and "chat.completion.chunk".
#include "butterfly/base/json.h"
#include "butterfly/serve/protocol/answer_writer.h"

namespace butterfly {
namespace {

class ChatWriter final : public AnswerWriter {
 public:
  explicit ChatWriter(AnswerSettings settings) : AnswerWriter(std::move(settings)) {
    for (std::size_t i = 0; i < settings_.choices; ++i) choices_.emplace_back(settings_, i);
  }

  void piece(std::size_t choice, const AnswerPiece& piece) override {
    Choice& state = choices_[choice];
    const auto events = state.splitter.push(piece.text);
    bool reasons = false;
    for (const AnswerEvent& event : events) reasons |= event.kind == AnswerEvent::Kind::kReasoning;
    if (reasons) state.reasons = true;
    if (!events.empty() && !reasons) state.reasons = false;
    if (piece.is_token && state.reasons) ++reasoning_tokens_;
    if (settings_.logprobs && piece.is_token) state.logprobs.push_back(logprob_json(piece));
    open(choice);
    take(choice, events);
  }

  void end(std::size_t choice, FinishReason reason) override {
    Choice& state = choices_[choice];
    open(choice);
    take(choice, state.splitter.finish());
    state.finish_reason = butterfly::finish_reason(reason, !state.calls.empty());
    if (settings_.stream) emit_chunk(choice, ApiJson::object(), state.finish_reason);
  }

  void finish(const AnswerUsage& usage) override {
    if (!settings_.stream) return;
    if (settings_.include_usage) {
      ApiJson chunk = head("chat.completion.chunk");
      chunk["choices"] = ApiJson::array();
      chunk["usage"] = usage_json(usage, reasoning_tokens_);
      emit(chunk);
    }
    emit_done();
  }

  ApiJson whole(const AnswerUsage& usage) override {
    ApiJson json = head("chat.completion");
    json["choices"] = ApiJson::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      Choice& state = choices_[i];
      ApiJson message = {{"role", "assistant"}, {"content", state.content}};
      if (state.content.empty() && !state.calls.empty()) message["content"] = nullptr;
      message["refusal"] = nullptr;
      if (!state.reasoning.empty()) message["reasoning_content"] = state.reasoning;
      for (const ToolCall& call : state.calls) message["tool_calls"].push_back(call_json(call));
      ApiJson logprobs = nullptr;
      if (settings_.logprobs) logprobs = {{"content", std::move(state.logprobs)}, {"refusal", nullptr}};
      json["choices"].push_back({{"index", i},
                                 {"message", std::move(message)},
                                 {"logprobs", std::move(logprobs)},
                                 {"finish_reason", state.finish_reason}});
    }
    json["usage"] = usage_json(usage, reasoning_tokens_);
    return json;
  }

 private:
  struct Choice {
    Choice(const AnswerSettings& settings, std::size_t index) : splitter(settings, index) {}
    AnswerSplitter splitter;
    bool opened = false;
    bool reasons = false;
    std::string content{}, reasoning{}, finish_reason{};
    std::vector<ToolCall> calls{};
    ApiJson logprobs = ApiJson::array();  // of a stream: those that were not sent yet
  };

  ApiJson head(const char* object) const {
    return {{"id", settings_.id},
            {"object", object},
            {"created", settings_.created},
            {"model", settings_.model},
            {"system_fingerprint", "butterfly"}};
  }

  static ApiJson call_json(const ToolCall& call) {
    return {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  }

  void open(std::size_t choice) {
    Choice& state = choices_[choice];
    if (state.opened || !settings_.stream) return;
    state.opened = true;
    ApiJson logprobs = std::exchange(state.logprobs, ApiJson::array());
    emit_chunk(choice, {{"role", "assistant"}, {"content", ""}}, nullptr);
    state.logprobs = std::move(logprobs);
  }

  void emit_chunk(std::size_t choice, ApiJson delta, const ApiJson& reason) {
    Choice& state = choices_[choice];
    ApiJson chunk = head("chat.completion.chunk");
    ApiJson logprobs = nullptr;
    if (!state.logprobs.empty()) {
      logprobs = {{"content", std::exchange(state.logprobs, ApiJson::array())}, {"refusal", nullptr}};
    }
    chunk["choices"].push_back(
        {{"index", choice}, {"delta", std::move(delta)}, {"logprobs", std::move(logprobs)}, {"finish_reason", reason}});
    if (settings_.include_usage) chunk["usage"] = nullptr;
    emit(chunk);
  }

  /// More of the last call.
  void add_arguments(std::size_t choice, const std::string& text) {
    Choice& state = choices_[choice];
    if (state.calls.empty()) return;
    state.calls.back().arguments += text;
    const ApiJson part = {{"index", state.calls.size() - 1}, {"function", {{"arguments", text}}}};
    if (settings_.stream) emit_chunk(choice, {{"tool_calls", ApiJson::array({part})}}, nullptr);
  }

  void take(std::size_t choice, const std::vector<AnswerEvent>& events) {
    Choice& state = choices_[choice];
    for (const AnswerEvent& event : events) {
      if (event.kind == AnswerEvent::Kind::kCall) {
        ApiJson call = {{"index", state.calls.size()}};
        call.update(call_json(event.call));
        state.calls.push_back(event.call);
        if (settings_.stream) emit_chunk(choice, {{"tool_calls", ApiJson::array({std::move(call)})}}, nullptr);
        continue;
      }
      if (event.kind == AnswerEvent::Kind::kArguments) {
        add_arguments(choice, event.text);
        continue;
      }
      const bool reasons = event.kind == AnswerEvent::Kind::kReasoning;
      (reasons ? state.reasoning : state.content) += event.text;
      if (settings_.stream) {
        emit_chunk(choice, {{reasons ? "reasoning_content" : "content", event.text}}, nullptr);
      }
    }
  }

  std::vector<Choice> choices_;
  std::size_t reasoning_tokens_ = 0;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(AnswerSettings settings) {
  return std::make_unique<ChatWriter>(std::move(settings));
}

}  // namespace butterfly
