// What stands before a text that has a grammar: reasoning, until the words that end it. Anything may stand there but an
// end of the answer, and it is over in time for a whole text behind it. Belongs to one request and one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/grammar/matcher.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

class LeadIn {
 public:
  /// `tokenizer` outlives it; `matcher` is that of the text behind. Errors: kInvalidArgument where `end` and the
  /// shortest text are more tokens than may be generated; those of the tokenizer.
  static Result<LeadIn> create(const Tokenizer& tokenizer, std::string end, GrammarMatcher& matcher);

  bool over() const { return over_; }
  /// What has to come next so that there is room for the text, with this many tokens left; nothing: what the model
  /// likes.
  std::optional<TokenId> forced(int tokens_left) const;
  void accept(TokenId token, int tokens_left);  // that were left before it

 private:
  explicit LeadIn(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  const Tokenizer* tokenizer_;
  std::string end_;
  std::vector<TokenId> end_tokens_;  // that spell it
  std::int64_t text_tokens_ = 0;     // of the shortest text
  std::string tail_;                 // of what was accepted, as far as `end_` may begin in it
  std::size_t spelled_ = 0;          // of end_tokens_
  bool over_ = false;
};

}  // namespace butterfly
