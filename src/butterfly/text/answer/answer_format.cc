#include "butterfly/text/answer/answer_format.h"

#include <algorithm>

namespace butterfly {

namespace {

constexpr AnswerPart kReasoning = AnswerPart::kReasoning;

constexpr AnswerTag kReasoningTags[] = {
    {"<think>", "</think>", kReasoning},
    {"[THINK]", "[/THINK]", kReasoning},
    {"<seed:think>", "</seed:think>", kReasoning},
    {"<|START_THINKING|>", "<|END_THINKING|>", kReasoning},
};

constexpr AnswerTag kTagTags[] = {
    {"<think>", "</think>", kReasoning},
    {"[THINK]", "[/THINK]", kReasoning},
    {"<seed:think>", "</seed:think>", kReasoning},
    {"<|START_THINKING|>", "<|END_THINKING|>", kReasoning},
    {"<tool_call>", "</tool_call>"},
    {"<|tool_call|>", "<|/tool_call|>"},
    {"<seed:tool_call>", "</seed:tool_call>"},
    {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
    {"<|START_ACTION|>", "<|END_ACTION|>"},
    {"<|START_RESPONSE|>", "", AnswerPart::kNothing},
    {"<|END_RESPONSE|>", "", AnswerPart::kNothing},
    {"<function=", "</function>"},
};

constexpr AnswerTag kLlamaTags[] = {{"<|python_tag|>", ""}, {"<function=", "</function>"}};
constexpr AnswerTag kMistralTags[] = {{"[THINK]", "[/THINK]", kReasoning}, {"[TOOL_CALLS]", ""}};
constexpr AnswerTag kCommandTags[] = {{"Action: ```json", "```"}, {"Action:```json", "```"}};

/// Further control tokens inside of what tags hold.
constexpr std::string_view kInnerTokens[] = {
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "[ARGS]",
    "[CALL_ID]",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|start|>",
    "<|end|>",
};

}  // namespace

const char* to_string(AnswerFormat format) {
  switch (format) {
    case AnswerFormat::kTags:
      return "tags";
    case AnswerFormat::kLlama3:
      return "llama 3";
    case AnswerFormat::kMistral:
      return "mistral";
    case AnswerFormat::kHarmony:
      return "harmony";
    case AnswerFormat::kGlm4:
      return "glm 4";
    case AnswerFormat::kCommandR:
      return "command-r";
    case AnswerFormat::kFunctionary:
      return "functionary";
  }
  return "tags";
}

AnswerFormat find_answer_format(std::string_view source) {
  const auto has = [&](std::string_view word) { return source.find(word) != std::string_view::npos; };
  if (has("<|channel|>") && has("<|message|>")) return AnswerFormat::kHarmony;
  if (has(">>>all") || has("'>>>'") || has("\">>>\"")) return AnswerFormat::kFunctionary;
  if (has("[TOOL_CALLS]")) return AnswerFormat::kMistral;
  if (has("Action: ```json") || has("Action:```json")) return AnswerFormat::kCommandR;
  if (has("<tool_call>") || has("tool▁calls▁begin")) return AnswerFormat::kTags;
  if (has("<|observation|>")) return AnswerFormat::kGlm4;
  if (has("<|start_header_id|>") || has("<|python_tag|>")) return AnswerFormat::kLlama3;
  return AnswerFormat::kTags;
}

std::span<const AnswerTag> answer_tags(AnswerFormat format) {
  switch (format) {
    case AnswerFormat::kTags:
      return kTagTags;
    case AnswerFormat::kLlama3:
      return kLlamaTags;
    case AnswerFormat::kMistral:
      return kMistralTags;
    case AnswerFormat::kCommandR:
      return kCommandTags;
    default:
      return kReasoningTags;
  }
}

std::vector<TokenId> answer_tokens(const Vocabulary& vocabulary, AnswerFormat format) {
  std::vector<TokenId> tokens;
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    if (vocabulary.types[index] != TokenType::kControl) continue;
    const std::string& piece = vocabulary.pieces[index];
    const auto is_tag = [&](const AnswerTag& tag) { return piece == tag.open || piece == tag.close; };
    const bool inner = std::ranges::find(kInnerTokens, piece) != std::end(kInnerTokens);
    // A reader of channels must also see where one ends.
    const bool steers = format == AnswerFormat::kHarmony || (piece != "<|end|>" && piece != "<|start|>");
    if (std::ranges::any_of(answer_tags(format), is_tag) || (inner && steers)) tokens.push_back(TokenId{id});
  }
  return tokens;
}

const AnswerTag* opened_reasoning(std::string_view prompt) {
  while (!prompt.empty() && (prompt.back() == ' ' || prompt.back() == '\n')) prompt.remove_suffix(1);
  for (const AnswerTag& tag : kReasoningTags) {
    if (prompt.ends_with(tag.open)) return &tag;
  }
  return nullptr;
}

}  // namespace butterfly
