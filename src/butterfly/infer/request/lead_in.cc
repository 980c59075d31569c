#include "butterfly/infer/request/lead_in.h"

#include <utility>

namespace butterfly {

Result<LeadIn> LeadIn::create(const Tokenizer& tokenizer, std::string end, GrammarMatcher& matcher) {
  LeadIn made(tokenizer);
  made.end_ = std::move(end);
  BF_ASSIGN_OR_RETURN(made.end_tokens_, tokenizer.encode(made.end_, {.add_bos = false}));
  made.text_tokens_ = matcher.tokens_needed();
  const std::int64_t needed = made.text_tokens_ + std::ssize(made.end_tokens_);
  if (needed > matcher.tokens_left()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the shortest text that the grammar allows takes {} tokens and {} takes {}, {} may be generated",
                      made.text_tokens_, made.end_, made.end_tokens_.size(), matcher.tokens_left());
  }
  return made;
}

std::optional<TokenId> LeadIn::forced(int tokens_left) const {
  const std::int64_t needed = text_tokens_ + std::ssize(end_tokens_) - static_cast<std::int64_t>(spelled_);
  if (spelled_ == 0 && tokens_left > needed) return std::nullopt;
  return end_tokens_[spelled_];
}

void LeadIn::accept(TokenId token, int tokens_left) {
  if (forced(tokens_left)) ++spelled_;
  tail_ += tokenizer_->piece(token, Tokenizer::Control::kShown);
  over_ = spelled_ == end_tokens_.size() || tail_.find(end_) != std::string::npos;
  if (tail_.size() >= end_.size()) tail_.erase(0, tail_.size() - end_.size() + 1);
}

}  // namespace butterfly
