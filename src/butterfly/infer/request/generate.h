// Text in, text out: requests are tokenised, run through a pipeline side by side, sampled and streamed.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/pipeline.h"
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
  std::vector<TokenId> shown{};  // control tokens that are part of the text all the same (answer_tokens)
};

enum class FinishReason : std::uint8_t { kLength, kContext, kEndToken, kStop, kCancelled };
const char* to_string(FinishReason reason);

struct Generation {
  std::vector<TokenId> tokens;           // generated, without the prompt
  std::vector<SampledToken> logprobs{};  // of each of them, where sampling asks for it
  std::string text;
  FinishReason reason = FinishReason::kLength;
  double first_token_s = 0;  // from the call to the first sampled token
  double total_s = 0;        // to the last
};

struct GenerateOptions {
  int prefill_chunk = 512;  // prompt tokens per step
  int context = 0;          // the model's
  /// Of one request after the other over the same pipeline, as in a conversation: the tokens whose keys and values the
  /// pipeline has from the call before; only what differs is computed. Afterwards those of this call; null: nothing is
  /// kept. Bits do not depend on it.
  std::vector<TokenId>* cached = nullptr;
};

/// Called with each piece of text of request `index` as it comes; pieces join to Generation::text.
using TextSink = std::function<void(std::size_t index, std::string_view text)>;

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

/// Continues every request. When nodes die, the texts go on over those that remain: the tokens so far are replayed, and
/// the reader sees a pause and the same text. A requested `stop` ends all texts as kCancelled with what they have.
/// Errors: kInvalidArgument (a prompt longer than the context, an option out of range), those of the pipeline
/// that it cannot recover from.
Result<std::vector<Generation>> generate(Pipeline& pipeline, const Tokenizer& tokenizer,
                                         std::span<const Request> requests, const GenerateOptions& options,
                                         const TextSink& sink, std::stop_token stop = {});

}  // namespace butterfly
