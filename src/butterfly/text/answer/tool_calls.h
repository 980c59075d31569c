// What stands between the tags of tool calls. Plain functions, thread-safe; answers come from a model, so everything is
// possible in them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace butterfly {

struct ToolCall {
  std::string id;         // as the model wrote it; empty: it wrote none
  std::string name;       // of the function
  std::string arguments;  // a JSON object, as text
};

/// One JSON object with a name and arguments, a list of them, or several with white space, ';' or ',' between them.
/// Nothing where the text is something else.
std::optional<std::vector<ToolCall>> read_json_calls(std::string_view text);

/// The calls in `text`, whatever of the forms of AnswerFormat it has: JSON, <function=name>, name and <arg_key>,
/// DeepSeek's and Kimi's tokens, names with [ARGS], code behind <|python_tag|>.
std::optional<std::vector<ToolCall>> read_calls(std::string_view text);

/// `name` and what it is called with; what is no JSON object becomes {"code": text}. Nothing for a strange name.
std::optional<ToolCall> named_call(std::string_view name, std::string_view arguments);

/// Letters, digits and _ - . : of a function's name.
bool is_function_name(std::string_view text);

}  // namespace butterfly
