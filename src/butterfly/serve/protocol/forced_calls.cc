#include "butterfly/serve/protocol/forced_calls.h"

#include <algorithm>
#include <utility>

#include "butterfly/base/json.h"

namespace butterfly {
namespace {

constexpr int kInCall = 2;  // brackets around the members of a call

bool is_white(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

void ForcedCalls::begin_call(const std::string& name) {
  any_ = true;
  text_.clear();
  events_.push_back({.kind = AnswerEvent::Kind::kCall, .text = {}, .call = {.id = {}, .name = name, .arguments = {}}});
}

void ForcedCalls::add_arguments(char c) {
  if (events_.empty() || events_.back().kind != AnswerEvent::Kind::kArguments) {
    events_.push_back({.kind = AnswerEvent::Kind::kArguments, .text = {}, .call = {}});
  }
  events_.back().text += c;
}

/// A byte between the brackets of a call, outside of what its members hold.
void ForcedCalls::take_member(char c) {
  if (in_string_) {
    word_ += c;
  } else if (c == ':') {
    in_arguments_ = word_ == "\"arguments\"";
    key_ = std::exchange(word_, {});
  } else if (c == ',' || c == '}') {
    if (key_ == "\"name\"") {
      const ApiJson name = parse_ordered_json(word_);
      begin_call(name.is_string() ? name.get<std::string>() : word_);
    }
    in_arguments_ = false;
    word_.clear();
    key_.clear();
  } else if (!is_white(c)) {
    word_ += c;
  }
}

void ForcedCalls::take(char c) {
  const int before = depth_;
  const bool was_in_string = in_string_;
  if (in_string_) {
    if (!escaped_ && c == '"') in_string_ = false;
    escaped_ = !escaped_ && c == '\\';
  } else {
    if (c == '"') in_string_ = true;
    if (c == '[' || c == '{') ++depth_;
    if (c == ']' || c == '}') --depth_;
  }
  if (std::max(before, depth_) < kInCall) return;
  if (depth_ < kInCall) return take_member('}');  // the end of a call
  if (before < kInCall) return;                   // its beginning
  const bool separates = before == kInCall && !was_in_string && (c == ',' || (is_white(c) && depth_ == kInCall));
  if (in_arguments_ && !separates) return add_arguments(c);
  if (was_in_string && !in_string_) {
    word_ += c;
  } else {
    take_member(c);
  }
}

std::vector<AnswerEvent> ForcedCalls::push(std::string_view text) {
  if (choice_.kind == ToolChoice::Kind::kNamed) {
    for (const char c : text) {
      if (!any_ && is_white(c)) continue;
      if (!any_) begin_call(choice_.name);
      add_arguments(c);
    }
    return std::exchange(events_, {});
  }
  if (!any_) text_ += text;
  for (const char c : text) take(c);
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> ForcedCalls::finish() {
  if (any_) return {};
  if (choice_.kind == ToolChoice::Kind::kNamed) {
    begin_call(choice_.name);
  } else if (!text_.empty()) {
    events_.push_back({.kind = AnswerEvent::Kind::kContent, .text = text_, .call = {}});
  }
  return std::exchange(events_, {});
}

}  // namespace butterfly
