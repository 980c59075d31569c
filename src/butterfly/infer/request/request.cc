#include "butterfly/infer/request/request.h"

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

}  // namespace butterfly
