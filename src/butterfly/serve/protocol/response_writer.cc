// /v1/responses: a "response" with its output items, and the events that build it up.
#include "butterfly/base/json.h"
#include "butterfly/serve/protocol/answer_writer.h"

namespace butterfly {
namespace {

class ResponseWriter final : public AnswerWriter {
 public:
  explicit ResponseWriter(AnswerSettings settings) : AnswerWriter(std::move(settings)), splitter_(settings_, 0) {}

  void begin() override {
    send("response.created", {{"response", response("in_progress", nullptr)}});
    send("response.in_progress", {{"response", response("in_progress", nullptr)}});
  }

  void piece(std::size_t, const AnswerPiece& piece) override {
    const auto events = splitter_.push(piece.text);
    if (settings_.logprobs && piece.is_token) logprobs_.push_back(logprob_json(piece));
    take(events);
    if (piece.is_token && !item_.is_null() && kind_ == AnswerEvent::Kind::kReasoning) ++reasoning_tokens_;
  }

  void end(std::size_t, FinishReason reason) override {
    take(splitter_.finish());
    close_item();
    if (reason == FinishReason::kLength || reason == FinishReason::kContext || reason == FinishReason::kCancelled) {
      status_ = "incomplete";
    }
  }

  void finish(const AnswerUsage& usage) override {
    send("response." + status_, {{"response", response(status_, usage_of(usage))}});
  }

  void fail(const ApiError& error) override {
    ApiJson failed = response("failed", nullptr);
    failed["error"] = {{"code", "server_error"}, {"message", error.message}};
    send("response.failed", {{"response", std::move(failed)}});
  }

  ApiJson whole(const AnswerUsage& usage) override { return response(status_, usage_of(usage)); }

 private:
  ApiJson usage_of(const AnswerUsage& usage) const {
    ApiJson json = {{"input_tokens", usage.prompt_tokens}};
    json["input_tokens_details"] = {{"cached_tokens", settings_.stream ? 0 : usage.cached_tokens}};
    json["output_tokens"] = usage.generated_tokens;
    json["output_tokens_details"] = {{"reasoning_tokens", reasoning_tokens_}};
    json["total_tokens"] = usage.prompt_tokens + usage.generated_tokens;
    return json;
  }

  ApiJson response(const std::string& status, const ApiJson& usage) const {
    ApiJson json = {{"id", settings_.id},       {"object", "response"}, {"created_at", settings_.created},
                    {"status", status},         {"error", nullptr},     {"incomplete_details", nullptr},
                    {"model", settings_.model}, {"output", output_}};
    if (status == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
    json["usage"] = usage;
    if (settings_.shown.is_object()) json.update(settings_.shown);
    return json;
  }

  void send(const std::string& type, ApiJson data) {
    if (!settings_.stream) return;
    ApiJson event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    emit_named(type, event);
  }

  ApiJson place() const { return {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}}; }

  void send_at(const std::string& type, const ApiJson& more) {
    ApiJson data = place();
    data.update(more);
    send(type, std::move(data));
  }

  ApiJson part(const std::string& text) const {
    if (kind_ == AnswerEvent::Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    ApiJson made = {{"type", "output_text"}, {"text", text}, {"annotations", ApiJson::array()}};
    if (settings_.logprobs) made["logprobs"] = text.empty() ? ApiJson::array() : all_logprobs_;
    return made;
  }

  void open_item(AnswerEvent::Kind kind) {
    if (!item_.is_null() && kind_ == kind) return;
    close_item();
    kind_ = kind;
    text_.clear();
    all_logprobs_ = ApiJson::array();
    const bool reasons = kind == AnswerEvent::Kind::kReasoning;
    item_ = {{"id", fmt::format("{}_{}_{}", reasons ? "rs" : "msg", settings_.id, output_.size())},
             {"type", reasons ? "reasoning" : "message"},
             {"status", "in_progress"}};
    if (reasons) {
      item_["summary"] = ApiJson::array();
    } else {
      item_["role"] = "assistant";
    }
    item_["content"] = ApiJson::array();
    send("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
    send_at("response.content_part.added", {{"part", part("")}});
  }

  void close_item() {
    close_call();
    if (item_.is_null()) return;
    const std::string name = kind_ == AnswerEvent::Kind::kReasoning ? "reasoning_text" : "output_text";
    ApiJson done = {{"text", text_}};
    if (kind_ == AnswerEvent::Kind::kContent) done["logprobs"] = all_logprobs_;
    send_at("response." + name + ".done", done);
    send_at("response.content_part.done", {{"part", part(text_)}});
    item_["status"] = "completed";
    item_["content"].push_back(part(text_));
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", item_}});
    output_.push_back(std::exchange(item_, nullptr));
  }

  void open_call(const ToolCall& call) {
    close_item();
    call_ = {{"id", fmt::format("fc_{}_{}", settings_.id, output_.size())},
             {"type", "function_call"},
             {"status", "in_progress"},
             {"call_id", call.id},
             {"name", call.name},
             {"arguments", ""}};
    text_.clear();
    send("response.output_item.added", {{"output_index", output_.size()}, {"item", call_}});
    add_arguments(call.arguments);
  }

  void add_arguments(const std::string& text) {
    if (call_.is_null() || text.empty()) return;
    text_ += text;
    send("response.function_call_arguments.delta",
         {{"item_id", call_["id"]}, {"output_index", output_.size()}, {"delta", text}});
  }

  void close_call() {
    if (call_.is_null()) return;
    send("response.function_call_arguments.done",
         {{"item_id", call_["id"]}, {"output_index", output_.size()}, {"arguments", text_}});
    call_["status"] = "completed";
    call_["arguments"] = text_;
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", call_}});
    output_.push_back(std::exchange(call_, nullptr));
  }

  void take(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      if (event.kind == AnswerEvent::Kind::kCall) {
        open_call(event.call);
        continue;
      }
      if (event.kind == AnswerEvent::Kind::kArguments) {
        add_arguments(event.text);
        continue;
      }
      open_item(event.kind);
      text_ += event.text;
      ApiJson more = {{"delta", event.text}};
      const bool reasons = event.kind == AnswerEvent::Kind::kReasoning;
      if (!reasons) {
        more["logprobs"] = logprobs_;
        for (ApiJson& each : logprobs_) all_logprobs_.push_back(std::move(each));
        logprobs_ = ApiJson::array();
      }
      send_at(reasons ? "response.reasoning_text.delta" : "response.output_text.delta", more);
    }
  }

  AnswerSplitter splitter_;
  std::string status_ = "completed";
  std::uint64_t sequence_ = 0;
  std::size_t reasoning_tokens_ = 0;
  ApiJson output_ = ApiJson::array();
  ApiJson item_ = nullptr;  // that is open
  ApiJson call_ = nullptr;  // likewise; one of the two at most
  AnswerEvent::Kind kind_ = AnswerEvent::Kind::kContent;
  std::string text_;                         // of the open item or call
  ApiJson logprobs_ = ApiJson::array();      // not sent yet
  ApiJson all_logprobs_ = ApiJson::array();  // of the open item
};

}  // namespace

std::unique_ptr<AnswerWriter> make_response_writer(AnswerSettings settings) {
  return std::make_unique<ResponseWriter>(std::move(settings));
}

}  // namespace butterfly
