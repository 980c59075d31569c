// What is asked of a model, and what came of it. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/request/sampler.h"
#include "butterfly/infer/request/text_stream.h"
#include "butterfly/model/core/config.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

struct Request {
  std::vector<TokenId> prompt;   // at least one token; see encode_prompt
  std::vector<TokenId> encoded;  // what a model with encoder and decoder reads; its prompt is the decoder's first token
  int tokens_max = 128;          // generated at most; the context may end a text earlier
  SamplingOptions sampling;
  std::uint64_t sample_index = 0;      // tells samples of one prompt and seed apart
  std::vector<std::string> stops;      // a text ends before the first of these
  std::vector<TokenId> stop_tokens{};  // and before these, ignore_end or not
  bool ignore_end = false;             // go on after an end token
  /// What the answer has to be; null: anything. Its text is whole before tokens_max or the context ends, whatever
  /// ignore_end says. Shared by all requests with this grammar.
  std::shared_ptr<TokenAutomaton> grammar{};
  /// What ends a part of the answer, such as reasoning, before which anything may stand and behind which the grammar
  /// begins. That part ends in time for a whole text behind it. Empty: the grammar holds from the first token on.
  std::string grammar_after{};
  /// With this number of best ones, log-probabilities of the prompt's own tokens, which then are all computed; -1:
  /// none. tokens_max may be 0 then.
  int prompt_logprobs = -1;
  std::vector<TokenId> shown{};  // control tokens that are part of the text all the same (answer_tokens)
};

enum class FinishReason : std::uint8_t { kLength, kContext, kEndToken, kStop, kCancelled };
const char* to_string(FinishReason reason);

struct Generation {
  std::vector<TokenId> tokens;           // generated, without the prompt
  std::vector<SampledToken> logprobs{};  // of each of them, where sampling asks for it
  std::optional<SampledToken> last{};    // the token that ended the text and is no part of it, likewise
  /// Of the prompt's tokens from the second one on: the first follows nothing. Empty where they were not asked for.
  std::vector<SampledToken> prompt_logprobs{};
  std::string text;
  FinishReason reason = FinishReason::kLength;
  double waited_s = 0;              // from the moment it was asked for until its turn came
  double first_token_s = 0;         // from the moment it was asked for to the first sampled token
  double total_s = 0;               // to the last
  std::int64_t cached_tokens = 0;   // of the prompt, whose keys and values were there already
  std::int64_t guessed_tokens = 0;  // generated ones that were guessed ahead, and came with others in one step
};

/// What a request of this model has for `text`: a prompt, or a text for the encoder, which ends with the token that
/// ends texts, and the decoder's first token. Errors: those of encode_prompt(); kInvalidArgument for a model that
/// continues no text.
Status set_prompt(const Tokenizer& tokenizer, const ModelConfig& config, std::string_view text, Request& request);

/// Tokens of a prompt. An empty text is the beginning-of-text token alone. Errors: those of the tokenizer;
/// kInvalidArgument when there is nothing to start from.
Result<std::vector<TokenId>> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

/// What one request needs while it is generated: its tokens are drawn from the one and pushed into the other.
/// Errors: those of GrammarMatcher::create().
Result<Sampler> make_sampler(const Request& request, const Tokenizer& tokenizer, int context);
TextStream make_text_stream(const Request& request, const Tokenizer& tokenizer);

}  // namespace butterfly
