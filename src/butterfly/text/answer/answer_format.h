// How a family of models writes reasoning and tool calls into its answers. Plain data and functions, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/text/vocabulary.h"

namespace butterfly {

enum class AnswerFormat : std::uint8_t {
  kTags,         // tags around JSON or XML: Hermes, Qwen, SmolLM3, GLM-4.5, Granite, Phi-4, DeepSeek, Kimi, Command-R7B
  kLlama3,       // an answer that is a JSON object; <|python_tag|>
  kMistral,      // [TOOL_CALLS] and a list, or names with [ARGS]
  kHarmony,      // gpt-oss: messages in channels, some to functions
  kGlm4,         // the function's name, and JSON on the next line
  kCommandR,     // Action: ```json ... ```
  kFunctionary,  // >>>name and a line with JSON
};

const char* to_string(AnswerFormat format);

/// By the words that a chat template uses.
AnswerFormat find_answer_format(std::string_view template_source);

/// What an AnswerParser must see though it is no text: control tokens of `vocabulary` that a format gives a meaning.
std::vector<TokenId> answer_tokens(const Vocabulary& vocabulary, AnswerFormat format);

/// What a tag opens.
enum class AnswerPart : std::uint8_t { kNothing, kReasoning, kCalls };

struct AnswerTag {
  std::string_view open;
  std::string_view close;  // empty: the end of the answer, or the next tag
  AnswerPart part = AnswerPart::kCalls;
};

/// The tags of a format, but for kHarmony and kFunctionary, which are no tags around something.
std::span<const AnswerTag> answer_tags(AnswerFormat format);

/// The tag of the reasoning inside of which a prompt ends, and the answer therefore begins; null: it does not.
const AnswerTag* opened_reasoning(std::string_view prompt);

}  // namespace butterfly
