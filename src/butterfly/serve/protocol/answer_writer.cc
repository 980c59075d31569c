#include "butterfly/serve/protocol/answer_writer.h"

#include "butterfly/base/json.h"

namespace butterfly {
namespace {

/// Nine letters and digits, which is what the strictest templates take.
std::string call_id(const std::string& seed, int number) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : fmt::format("{}/{}", seed, number)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  std::string id;
  for (int i = 0; i < 9; ++i) {
    id += kLetters[hash % kLetters.size()];
    hash /= kLetters.size();
  }
  return id;
}

}  // namespace

void AnswerWriter::emit(const ApiJson& data) {
  events_.push_back(fmt::format("data: {}\n\n", dump_json(data)));
}

void AnswerWriter::emit_named(const std::string& name, const ApiJson& data) {
  events_.push_back(fmt::format("event: {}\ndata: {}\n\n", name, dump_json(data)));
}

void AnswerWriter::fail(const ApiError& error) {
  events_.push_back(fmt::format("data: {}\n\n", to_json(error)));
  emit_done();
}

ApiJson AnswerWriter::usage_json(const AnswerUsage& usage, std::size_t reasoning_tokens) const {
  ApiJson json = {{"prompt_tokens", usage.prompt_tokens},
                  {"completion_tokens", usage.generated_tokens},
                  {"total_tokens", usage.prompt_tokens + usage.generated_tokens}};
  if (settings_.show_cached && !settings_.stream) {
    json["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  }
  json["completion_tokens_details"] = {{"reasoning_tokens", reasoning_tokens}};
  return json;
}

std::unique_ptr<AnswerWriter> make_answer_writer(Endpoint endpoint, AnswerSettings settings) {
  if (endpoint == Endpoint::kCompletion) return make_completion_writer(std::move(settings));
  if (endpoint == Endpoint::kResponse) return make_response_writer(std::move(settings));
  return make_chat_writer(std::move(settings));
}

AnswerSplitter::AnswerSplitter(const AnswerSettings& settings, std::size_t choice)
    : is_forced_(settings.tool_choice.is_forced()),
      reasons_(settings.parser.reasoning != nullptr),
      seed_(fmt::format("{}/{}", settings.id, choice)),
      parallel_(settings.parallel_tool_calls),
      parser_(settings.parser),
      forced_(settings.tool_choice) {}

std::vector<AnswerEvent> AnswerSplitter::named(std::vector<AnswerEvent> events) {
  std::vector<AnswerEvent> kept;
  for (AnswerEvent& event : events) {
    if (event.kind == AnswerEvent::Kind::kCall) {
      passed_over_ = !parallel_ && calls_ > 0;
      if (!passed_over_) event.call.id = call_id(seed_, ++calls_);
    }
    const bool of_call = event.kind == AnswerEvent::Kind::kCall || event.kind == AnswerEvent::Kind::kArguments;
    if (!of_call || !passed_over_) kept.push_back(std::move(event));
  }
  return kept;
}

/// What follows the reasoning is the calls.
std::vector<AnswerEvent> AnswerSplitter::read_forced(std::vector<AnswerEvent> events) {
  std::vector<AnswerEvent> read;
  for (AnswerEvent& event : events) {
    if (event.kind != AnswerEvent::Kind::kContent) {
      read.push_back(std::move(event));
      continue;
    }
    for (AnswerEvent& each : forced_.push(event.text)) read.push_back(std::move(each));
  }
  return read;
}

std::vector<AnswerEvent> AnswerSplitter::push(const std::string& text) {
  if (!is_forced_) return named(parser_.push(text));
  return named(reasons_ ? read_forced(parser_.push(text)) : forced_.push(text));
}

std::vector<AnswerEvent> AnswerSplitter::finish() {
  if (!is_forced_) return named(parser_.finish());
  std::vector<AnswerEvent> events = reasons_ ? read_forced(parser_.finish()) : std::vector<AnswerEvent>{};
  for (AnswerEvent& event : forced_.finish()) events.push_back(std::move(event));
  return named(std::move(events));
}

ApiJson logprob_json(const AnswerPiece& piece) {
  const auto one = [](const ShownLogprob& shown) {
    ApiJson bytes = ApiJson::array();
    for (const char c : shown.token) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
    return ApiJson{{"token", shown.token}, {"logprob", shown.logprob}, {"bytes", std::move(bytes)}};
  };
  ApiJson json = one(piece.shown);
  json["top_logprobs"] = ApiJson::array();
  for (const ShownLogprob& top : piece.top) json["top_logprobs"].push_back(one(top));
  return json;
}

std::string finish_reason(FinishReason reason, bool calls) {
  if (reason == FinishReason::kLength || reason == FinishReason::kContext || reason == FinishReason::kCancelled) {
    return "length";
  }
  return calls ? "tool_calls" : "stop";
}

}  // namespace butterfly
