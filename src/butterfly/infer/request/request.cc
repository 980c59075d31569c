#include "butterfly/infer/request/request.h"

#include <algorithm>

namespace butterfly {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kEndToken:
      return "end";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Result<std::vector<TokenId>> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  const TokenId bos = tokenizer.vocabulary().bos;
  if (text.empty()) {
    if (bos.value < 0)
      return make_error(ErrorCode::kInvalidArgument, "the prompt is empty and this model has no token to begin with");
    return std::vector<TokenId>{bos};
  }
  return tokenizer.encode(text);
}

Status set_prompt(const Tokenizer& tokenizer, const ModelConfig& config, std::string_view text, Request& request) {
  if (config.encodes_only() || config.output != OutputKind::kLogits) {
    return make_error(ErrorCode::kInvalidArgument, "{} continues no text: it is {}; see `butterfly embed`", config.name,
                      config.encodes_only() ? "an encoder" : "stored without a head that gives logits");
  }
  if (!config.has_decoder()) {
    BF_ASSIGN_OR_RETURN(request.prompt, encode_prompt(tokenizer, text));
    return {};
  }
  BF_ASSIGN_OR_RETURN(request.encoded, tokenizer.encode(text, {.add_eos = true}));
  const TokenId end = tokenizer.vocabulary().eos;
  const bool ended = tokenizer.vocabulary().add_eos;  // an encoder's text ends, whatever its files say
  if (!ended && end.value >= 0 && (request.encoded.empty() || request.encoded.back() != end))
    request.encoded.push_back(end);
  if (request.encoded.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt is empty, and this model has no token to end it with");
  }
  request.prompt = {TokenId{config.decoder_start}};
  return {};
}

/// Only a text that begins here loses the space that some vocabularies put in front.
static bool begins_text(const Request& request, const Tokenizer& tokenizer) {
  const bool first = request.prompt.size() == 1 && request.prompt[0] == tokenizer.vocabulary().bos;
  return first || !request.encoded.empty();
}

TextStream make_text_stream(const Request& request, const Tokenizer& tokenizer) {
  return {tokenizer, {.first_in_text = begins_text(request, tokenizer)}, request.stops, request.shown};
}

Result<Sampler> make_sampler(const Request& request, const Tokenizer& tokenizer, int context) {
  SamplerInput input{.prompt = request.prompt, .sample_index = request.sample_index};
  if (request.grammar) {
    GrammarMatcher::Options options{.first_in_text = begins_text(request, tokenizer)};
    options.tokens_max = std::min(request.tokens_max, context - static_cast<int>(request.prompt.size()));
    options.end_tokens = request.grammar->trie().end_tokens();
    options.end_tokens.insert(options.end_tokens.end(), request.stop_tokens.begin(), request.stop_tokens.end());
    BF_ASSIGN_OR_RETURN(input.matcher, GrammarMatcher::create(request.grammar, std::move(options)));
    if (!request.grammar_after.empty()) {
      BF_ASSIGN_OR_RETURN(input.lead_in, LeadIn::create(tokenizer, request.grammar_after, *input.matcher));
    }
  }
  return Sampler(request.sampling, std::move(input));
}

}  // namespace butterfly
