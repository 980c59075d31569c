// The two ways from text to ids. An encoder sees text without special tokens, valid UTF-8 and not empty, and appends
// ids. Immutable after creation, thread-safe; borrows the vocabulary it was made from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/pattern.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Where in the whole text a piece of it stands.
enum class TextPlace : std::uint8_t { kStart, kAfterSpecial };

class Encoder {
 public:
  virtual ~Encoder() = default;

  /// Errors: kBadData where a character has no token; those of Pattern::split.
  virtual Status encode(std::string_view text, TextPlace place, PatternBudget& budget,
                        std::vector<TokenId>& ids) const = 0;

  /// Patterns that run over the text, for the budget.
  virtual std::size_t patterns() const { return 0; }

  /// The bytes that a token of text stands for; control and unknown tokens are the caller's business.
  virtual std::string text_of(std::int32_t id) const = 0;
};

/// Errors: kBadData where scores and pieces disagree.
Result<std::unique_ptr<Encoder>> make_sentencepiece_encoder(const Vocabulary& vocabulary);

/// Errors: those of Pattern::compile.
Result<std::unique_ptr<Encoder>> make_byte_bpe_encoder(const Vocabulary& vocabulary);

}  // namespace butterfly
