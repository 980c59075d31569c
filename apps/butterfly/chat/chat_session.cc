#include "chat/chat_session.h"

#include "butterfly/model/files/pending_file.h"
#include "commands.h"

namespace butterfly::app {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

ChatSession::ChatSession(const ChatModel& model, const Tokenizer& tokenizer, OpenModel& open,
                         const InferenceConfig& config, const std::string& system, std::shared_ptr<Drafter> drafter)
    : model_(model),
      tokenizer_(tokenizer),
      config_(config),
      // Room for one whole conversation: what was said before stays cached, other conversations make room for it.
      scheduler_(open.deployment->pipeline(), tokenizer,
                 {.context = open.context(),
                  .vocab = open.checkpoint.config.vocab,
                  .rows_max = config.prefill_chunk,
                  .cache_tokens = open.context(),
                  .keep_prefixes = true,
                  .drafter = std::move(drafter)}) {
  set_system(system);
}

void ChatSession::set_system(const std::string& text) {
  system_ = text;
  const bool has = !messages_.empty() && messages_[0]["role"] == "system";
  if (has) messages_.erase(0);
  if (!text.empty()) messages_.insert(messages_.begin(), Json{{"role", "system"}, {"content", text}});
}

void ChatSession::reset() {
  messages_.clear();
  set_system(system_);
}

bool ChatSession::stop_answer() {
  const std::lock_guard lock(mutex_);
  return answering_ && stop_.request_stop();
}

bool ChatSession::is_answering() {
  const std::lock_guard lock(mutex_);
  return answering_;
}

Result<ChatSession::Turn> ChatSession::answer(const std::string& text, const std::string& role, const EventSink& sink) {
  Json messages = messages_;
  Json message = {{"role", role}, {"content", text}};
  if (role == "tool" && !messages.empty() && messages.back().contains("tool_calls")) {
    const Json& call = messages.back()["tool_calls"].back();
    message["tool_call_id"] = call["id"];
    message["name"] = call["function"]["name"];
  }
  messages.push_back(std::move(message));
  BF_ASSIGN_OR_RETURN(ChatModel::Prompt prompt, model_.prompt(tokenizer_, messages));
  Turn turn;
  turn.prompt_tokens = prompt.tokens.size();
  Request request = config_.request;
  request.prompt = std::move(prompt.tokens);
  request.shown = std::move(prompt.shown);
  if (prompt.answer.reasoning != nullptr) request.grammar_after = prompt.answer.reasoning->close;
  AnswerParser parser(prompt.answer);
  AnswerRecord record;
  const auto take = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      record.add(event);
      sink(event);
    }
  };
  std::stop_token stop;
  {
    const std::lock_guard lock(mutex_);
    stop_ = std::stop_source();
    stop = stop_.get_token();
    answering_ = true;
  }
  const std::stop_callback on_end(interrupted(), [this] { stop_answer(); });
  auto generations = generate(
      scheduler_, std::span<const Request>(&request, 1),
      [&](std::size_t, std::string_view piece) { take(parser.push(piece)); }, stop);
  {
    const std::lock_guard lock(mutex_);
    answering_ = false;
  }
  if (!generations) return tl::unexpected(std::move(generations).error());
  take(parser.finish());
  const Generation& generation = generations->front();
  turn.reason = generation.reason;
  turn.cached_tokens = static_cast<std::size_t>(generation.cached_tokens);
  turn.tokens = generation.tokens.size();
  turn.seconds = generation.total_s;
  turn.first_token_s = generation.first_token_s;
  messages.push_back(record.message());
  messages_ = std::move(messages);
  return turn;
}

Status ChatSession::save(const std::string& path) const {
  const std::string text = dump_json(Json{{"messages", messages_}}, {.indent = 2}) + "\n";
  PendingFile file(path);
  BF_TRY(file.open());
  BF_TRY(file.write(text.data(), text.size()));
  return file.commit();
}

Status ChatSession::load(const std::string& path) {
  BF_ASSIGN_OR_RETURN(ChatInput input, read_conversation(path));
  for (const Json& message : input.messages) {
    const bool fits = message.is_object() && message.contains("role") && message["role"].is_string();
    if (!fits) return make_error(ErrorCode::kBadData, "{}: a message is no object with a role", path);
  }
  messages_ = std::move(input.messages);
  const bool has = !messages_.empty() && messages_[0]["role"] == "system" && messages_[0].contains("content") &&
                   messages_[0]["content"].is_string();
  system_ = has ? messages_[0]["content"].get<std::string>() : "";
  return {};
}

}  // namespace butterfly::app
