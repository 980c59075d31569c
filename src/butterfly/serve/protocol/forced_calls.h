// Calls that an answer has to consist of, told of while their text comes: the arguments of one function, or a list of
// objects with a name and arguments. A grammar sees to the form; arguments are passed on as they were written. Not
// thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "butterfly/serve/protocol/generation_body.h"
#include "butterfly/text/answer/answer_parser.h"

namespace butterfly {

class ForcedCalls {
 public:
  explicit ForcedCalls(const ToolChoice& choice) : choice_(choice) {}

  /// kCall once the name of one is known, and kArguments.
  std::vector<AnswerEvent> push(std::string_view text);
  /// What the text was if no call came of it.
  std::vector<AnswerEvent> finish();

 private:
  void take(char c);
  void take_member(char c);
  void begin_call(const std::string& name);
  void add_arguments(char c);

  const ToolChoice choice_;
  std::vector<AnswerEvent> events_;
  bool any_ = false;  // a call was told of
  std::string text_;  // until one was
  // Of a list.
  int depth_ = 0;  // of brackets
  bool in_string_ = false;
  bool escaped_ = false;
  bool in_arguments_ = false;  // that member is "arguments"
  std::string word_;           // the string that is being read in a call: a key, or the value of one
  std::string key_;
};

}  // namespace butterfly
