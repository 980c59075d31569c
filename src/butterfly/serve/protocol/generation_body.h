// What a client asks to be written: the bodies of /v1/chat/completions, /v1/completions and /v1/responses, read and
// checked as far as that needs no model. Plain values.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/serve/protocol/json_fields.h"

namespace butterfly {

enum class Endpoint : std::uint8_t { kChat, kCompletion, kResponse };

/// What the text of an answer must be.
struct TextConstraint {
  enum class Kind : std::uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kGrammar };
  Kind kind = Kind::kNone;
  ApiJson schema{};
  std::string text{};   // of a regular expression or a grammar
  std::string param{};  // that asked for it, for errors
};

struct ToolChoice {
  enum class Kind : std::uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name{};

  /// The answer is a call, and nothing else.
  bool is_forced() const { return kind == Kind::kRequired || kind == Kind::kNamed; }
};

/// Nothing: as the server has it.
struct SamplingWishes {
  std::optional<float> temperature{}, top_p{}, min_p{}, repeat_penalty{}, presence_penalty{}, frequency_penalty{};
  std::optional<int> top_k{};
  std::optional<std::uint64_t> seed{};
  std::vector<std::pair<TokenId, float>> logit_bias{};
  int logprobs = -1;  // best tokens shown with each; -1: none
};

struct GenerationBody {
  Endpoint endpoint = Endpoint::kChat;
  std::string model{};
  bool stream = false;
  bool include_usage = false;
  int samples = 1;
  std::optional<int> tokens_max{};
  SamplingWishes sampling{};
  std::vector<std::string> stops{};
  std::vector<TokenId> stop_tokens{};
  bool ignore_end = false;
  int priority = 0;  // lower ones go first, as vLLM has it
  TextConstraint constraint{};

  // Of a completion.
  std::vector<std::variant<std::string, std::vector<TokenId>>> prompts{};
  bool echo = false;

  // Of a conversation.
  ApiJson messages{};
  ApiJson tools{};  // null: none
  ToolChoice tool_choice{};
  bool parallel_tool_calls = true;
  ApiJson template_variables{};
  ApiJson documents{};

  // Of a response: what it repeats of its request.
  ApiJson shown{};
};

inline constexpr int kSamplesMax = 128;   // texts of one request, prompts times n
inline constexpr int kPriorityMax = 100;  // either way: each one is worth WaitingLine::kAgeing of waiting

std::optional<ApiError> read_chat_body(const ApiJson& json, GenerationBody& body);
std::optional<ApiError> read_completion_body(const ApiJson& json, GenerationBody& body);
std::optional<ApiError> read_response_body(const ApiJson& json, GenerationBody& body);
std::optional<ApiError> read_generation_body(Endpoint endpoint, const ApiJson& json, GenerationBody& body);

/// Shared by the three.
void read_sampling(JsonFields& fields, GenerationBody& body);
/// A list of messages as the API has it becomes one as templates want it.
void read_messages(const ApiJson& list, const std::string& path, std::optional<ApiError>& error, ApiJson& messages);
void read_tools(JsonFields& fields, GenerationBody& body);

}  // namespace butterfly
