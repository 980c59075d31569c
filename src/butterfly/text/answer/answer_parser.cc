#include "butterfly/text/answer/answer_parser.h"

#include <fmt/core.h>
#include <algorithm>
#include <utility>

namespace butterfly {

namespace {

using EventKind = AnswerEvent::Kind;
constexpr auto kNotThere = std::string::npos;
constexpr std::string_view kWhite = " \t\r\n";

/// Where a message of a channel ends.
const std::vector<std::string_view> kBodyEnds{"<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"};

/// "to=functions.name": the name.
std::string recipient_of(std::string_view header) {
  const std::size_t at = header.find("to=");
  if (at == kNotThere) return {};
  std::string_view name = header.substr(at + 3);
  name = name.substr(0, std::min(name.find_first_of(" \t\r\n<"), name.size()));
  if (name.starts_with("functions.")) name.remove_prefix(10);
  return std::string(name);
}

}  // namespace

AnswerParser::AnswerParser(const AnswerOptions& options) : options_(options) {
  if (options.format == AnswerFormat::kHarmony || options.format == AnswerFormat::kFunctionary) state_ = State::kHeader;
  const bool whole = options.format == AnswerFormat::kLlama3 || options.format == AnswerFormat::kGlm4;
  if (whole && options.tools) state_ = State::kWhole;
  if (options.reasoning != nullptr) {
    state_ = State::kReasoning;
    tag_ = options.reasoning;
    skip_space_ = true;
  }
}

std::vector<AnswerEvent> AnswerParser::push(std::string_view text) {
  buffer_ += text;
  while (step(false)) {
  }
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> AnswerParser::finish() {
  while (step(true)) {
  }
  return std::exchange(events_, {});
}

/// Whether something was done, after which there may be more to do.
bool AnswerParser::step(bool at_end) {
  if (skip_space_) {
    const std::size_t begin = std::min(buffer_.find_first_not_of(kWhite), buffer_.size());
    buffer_.erase(0, begin);
    if (buffer_.empty()) return false;
    skip_space_ = false;
  }
  switch (state_) {
    case State::kContent:
      return step_content(at_end);
    case State::kReasoning:
      return step_reasoning(at_end);
    case State::kCalls:
      return step_calls(at_end);
    case State::kHeader:
      return step_header(at_end);
    case State::kBody:
      return step_body(at_end);
    case State::kWhole:
      return step_whole(at_end);
  }
  return false;
}

void AnswerParser::emit(std::string_view text, EventKind kind) {
  if (text.empty()) return;
  if (kind == EventKind::kContent && text.find_first_not_of(kWhite) != kNotThere) said_ = true;
  if (!events_.empty() && events_.back().kind == kind && kind != EventKind::kCall) {
    events_.back().text += text;
    return;
  }
  events_.push_back({.kind = kind, .text = std::string(text), .call = {}});
}

bool AnswerParser::release(std::size_t bytes, EventKind kind) {
  emit(std::string_view(buffer_).substr(0, bytes), kind);
  buffer_.erase(0, bytes);
  return bytes > 0;
}

void AnswerParser::emit_call(ToolCall call) {
  // Nine letters and digits: the only form that every template takes.
  if (call.id.empty()) call.id = fmt::format("call{:05}", calls_);
  ++calls_;
  events_.push_back({.kind = EventKind::kCall, .text = {}, .call = std::move(call)});
}

void AnswerParser::emit_calls(std::string_view raw, std::string_view body) {
  auto calls = read_calls(body);
  const bool code = !calls && tag_ != nullptr && tag_->open == "<|python_tag|>";
  if (code) calls.emplace({ToolCall{.id = {}, .name = "python", .arguments = named_call("python", body)->arguments}});
  if (!calls) return emit(raw, EventKind::kContent);
  for (ToolCall& call : *calls) {
    // Command-R's way to say that no tool is needed.
    if (options_.format == AnswerFormat::kCommandR && call.name == "directly_answer") continue;
    emit_call(std::move(call));
  }
}

/// Bytes that cannot be the beginning of one of `words`.
std::size_t AnswerParser::certain(const std::vector<std::string_view>& words) const {
  std::size_t held = 0;
  for (const std::string_view word : words) {
    for (std::size_t size = std::min(word.size() - 1, buffer_.size()); size > held; --size) {
      if (std::string_view(buffer_).ends_with(word.substr(0, size))) {
        held = size;
        break;
      }
    }
  }
  return buffer_.size() - held;
}

/// The first tag that opens something here.
const AnswerTag* AnswerParser::next_tag(std::size_t& at) const {
  const AnswerTag* first = nullptr;
  for (const AnswerTag& tag : answer_tags(options_.format)) {
    if (tag.part == AnswerPart::kCalls && !options_.tools) continue;
    const std::size_t found = buffer_.find(tag.open);
    if (found == kNotThere || (first != nullptr && found >= at)) continue;
    const bool blank = buffer_.find_first_not_of(kWhite) >= found;
    if (tag.part == AnswerPart::kReasoning && (said_ || !blank)) continue;
    first = &tag;
    at = found;
  }
  return first;
}

bool AnswerParser::step_content(bool at_end) {
  std::size_t at = 0;
  const AnswerTag* tag = next_tag(at);
  if (tag == nullptr) {
    std::vector<std::string_view> words;
    for (const AnswerTag& each : answer_tags(options_.format)) {
      if (options_.tools || each.part != AnswerPart::kCalls) words.push_back(each.open);
    }
    std::size_t ready = at_end ? buffer_.size() : certain(words);
    // White space may stand before a call, and at the very front before reasoning: then it belongs to neither.
    while (options_.tools && !at_end && ready > 0 && kWhite.find(buffer_[ready - 1]) != kNotThere) --ready;
    if (!said_ && !at_end && buffer_.find_first_not_of(kWhite) >= ready) ready = 0;
    return release(ready, EventKind::kContent);
  }
  // White space between what was said and a call belongs to neither.
  const std::size_t end = buffer_.find_last_not_of(kWhite, at == 0 ? 0 : at - 1);
  const bool blank = at == 0 || end == kNotThere;
  if (!blank)
    emit(std::string_view(buffer_).substr(0, tag->part == AnswerPart::kNothing ? at : end + 1), EventKind::kContent);
  const bool keeps_tag = tag->open == "<function=";
  buffer_.erase(0, keeps_tag ? at : at + tag->open.size());
  tag_ = tag;
  searched_ = 0;
  if (tag->part == AnswerPart::kCalls) state_ = State::kCalls;
  if (tag->part == AnswerPart::kReasoning) {
    state_ = State::kReasoning;
    skip_space_ = true;
  }
  return true;
}

bool AnswerParser::step_reasoning(bool at_end) {
  const std::size_t end = buffer_.find(tag_->close);
  if (end != kNotThere) {
    const std::size_t last = end == 0 ? kNotThere : buffer_.find_last_not_of(kWhite, end - 1);
    emit(std::string_view(buffer_).substr(0, last == kNotThere ? 0 : last + 1), EventKind::kReasoning);
    buffer_.erase(0, end + tag_->close.size());
    const bool headers = options_.format == AnswerFormat::kFunctionary;
    state_ = headers ? State::kHeader : State::kContent;
    if (options_.format == AnswerFormat::kLlama3 && options_.tools) state_ = State::kWhole;
    skip_space_ = true;
    return true;
  }
  std::size_t ready = certain({tag_->close});
  // White space before the closing tag is not part of it.
  const std::size_t last = ready == 0 ? kNotThere : buffer_.find_last_not_of(kWhite, ready - 1);
  ready = last == kNotThere ? 0 : last + 1;
  return release(at_end ? buffer_.size() : ready, EventKind::kReasoning);
}

/// Where `word` ends the calls in the buffer: not inside a string of their JSON, unless that string never ends.
std::size_t AnswerParser::end_of_calls(std::string_view word, bool at_end) const {
  const std::size_t from = searched_ > word.size() ? searched_ - word.size() : 0;
  std::size_t end = buffer_.find(word, from);
  const std::size_t begin = buffer_.find_first_not_of(kWhite);
  const bool is_json = begin != kNotThere && (buffer_[begin] == '{' || buffer_[begin] == '[');
  if (!is_json) return end;
  bool in_string = false;
  for (std::size_t i = begin; i < buffer_.size() && (end != kNotThere || at_end); ++i) {
    if (i >= end && !in_string) return end;
    if (i >= end) end = buffer_.find(word, end + 1);
    if (in_string && buffer_[i] == '\\') {
      ++i;
    } else if (buffer_[i] == '"') {
      in_string = !in_string;
    }
  }
  return at_end && in_string ? buffer_.find(word) : kNotThere;
}

bool AnswerParser::step_calls(bool at_end) {
  const bool to_end = tag_->close.empty();
  const std::string_view end_word = to_end ? tag_->open : tag_->close;
  const std::size_t end = end_of_calls(end_word, at_end);
  searched_ = buffer_.size();
  if (end == kNotThere && !at_end) return false;
  if (end == kNotThere && buffer_.empty()) {
    state_ = State::kContent;
    return false;
  }
  const bool keeps_tag = tag_->open == "<function=";
  const std::string body = buffer_.substr(0, end);
  const std::string open(keeps_tag ? std::string_view() : tag_->open);
  const std::string raw = open + body + std::string(end == kNotThere || to_end ? std::string_view() : tag_->close);
  buffer_.erase(0, end == kNotThere ? buffer_.size() : end + end_word.size());
  emit_calls(raw, keeps_tag ? raw : body);
  searched_ = 0;
  if (end == kNotThere || !to_end) state_ = State::kContent;
  skip_space_ = !events_.empty() && events_.back().kind == EventKind::kCall;
  return true;
}

/// Llama 3 and GLM-4 write nothing but the call: what may be one is kept until it is clear.
bool AnswerParser::step_whole(bool at_end) {
  const std::size_t begin = std::min(buffer_.find_first_not_of(kWhite), buffer_.size());
  const std::string_view text = std::string_view(buffer_).substr(begin);
  bool possible = text.empty() || text.front() == '{';
  if (options_.format == AnswerFormat::kGlm4) {
    const std::size_t line = text.find('\n');
    const std::string_view name = text.substr(0, line);
    possible = text.empty() || (is_function_name(name) && (line == kNotThere || line + 1 == text.size() ||
                                                           text.substr(line + 1).starts_with('{')));
  }
  if (possible && !at_end) return false;
  state_ = State::kContent;
  if (!possible || text.empty()) return true;
  const bool glm = options_.format == AnswerFormat::kGlm4;
  const auto calls = glm && text.find('{') == kNotThere ? std::nullopt : glm ? read_calls(text) : read_json_calls(text);
  if (!calls) return true;
  for (const ToolCall& call : *calls) emit_call(call);
  buffer_.clear();
  return false;
}

void AnswerParser::begin_body(std::string_view header) {
  body_kind_ = EventKind::kContent;
  if (options_.format == AnswerFormat::kFunctionary) {
    const std::size_t last = header.find_last_not_of(kWhite);
    recipient_ = last == kNotThere ? "" : std::string(header.substr(0, last + 1));
    if (recipient_ == "all") recipient_.clear();
  } else {
    recipient_ = recipient_of(header);
    if (header.find("analysis") != kNotThere) body_kind_ = EventKind::kReasoning;
  }
  if (!options_.tools) recipient_.clear();
  state_ = State::kBody;
}

/// Of a message: which channel it is in, and to whom it goes.
bool AnswerParser::step_header(bool at_end) {
  constexpr std::size_t kHeaderMost = 400;
  const bool harmony = options_.format == AnswerFormat::kHarmony;
  const std::string_view end_word = harmony ? "<|message|>" : "\n";
  if (!harmony && buffer_.starts_with(">>>")) buffer_.erase(0, 3);
  const std::size_t end = buffer_.find(end_word);
  if (end == kNotThere) {
    // Without any header it is an answer as any other.
    const bool plain = harmony ? buffer_.size() > kHeaderMost : !is_function_name(buffer_);
    if (buffer_.empty() || (!at_end && (!plain || (!harmony && buffer_.size() < 4)))) return false;
    begin_body(harmony ? "" : "all");
    return true;
  }
  const std::string header = buffer_.substr(0, end);
  if (!harmony && !is_function_name(header)) {
    begin_body("all");
    return true;
  }
  buffer_.erase(0, end + end_word.size());
  begin_body(header);
  return true;
}

bool AnswerParser::step_body(bool at_end) {
  static const std::vector<std::string_view> kNext{">>>"};
  const std::vector<std::string_view>& ends = options_.format == AnswerFormat::kHarmony ? kBodyEnds : kNext;
  std::size_t end = kNotThere;
  std::string_view word;
  constexpr std::size_t kLongest = 16;
  const std::size_t from = searched_ > kLongest ? searched_ - kLongest : 0;
  for (const std::string_view each : ends) {
    const std::size_t found = buffer_.find(each, from);
    if (found < end) {
      end = found;
      word = each;
    }
  }
  if (end == kNotThere && !at_end) {
    searched_ = recipient_.empty() ? 0 : buffer_.size();
    return recipient_.empty() && release(certain(ends), body_kind_);
  }
  searched_ = 0;
  if (end == kNotThere && buffer_.empty() && recipient_.empty()) return false;
  const std::string body = buffer_.substr(0, end);
  buffer_.erase(0, end == kNotThere ? buffer_.size() : end + word.size());
  if (recipient_.empty()) {
    emit(body, body_kind_);
  } else if (auto call = named_call(recipient_, body)) {
    emit_call(std::move(*call));
  } else {
    emit(body, EventKind::kContent);
  }
  recipient_.clear();
  state_ = State::kHeader;
  return end != kNotThere;
}

}  // namespace butterfly
