// From text to ids, and from ids to text. An encoder sees text without special tokens, valid UTF-8 and not empty, and
// appends ids. Immutable after creation, thread-safe; borrows the vocabulary it was made from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/steps/decoder.h"
#include "butterfly/text/steps/normalizer.h"
#include "butterfly/text/steps/pattern.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Where in the whole text a piece of it stands.
enum class TextPlace : std::uint8_t { kStart, kAfterSpecial };

class Encoder {
 public:
  virtual ~Encoder() = default;

  /// What encode() wants its text to have gone through; may be empty.
  const Normalizer& normalizer() const { return normalizer_; }

  /// Texts that the normalizer leaves alone; may be null.
  virtual const ProtectedTexts* kept() const { return nullptr; }

  /// Errors: kBadData where a character has no token; those of Pattern::split.
  virtual Status encode(std::string_view normalised, TextPlace place, PatternBudget& budget,
                        std::vector<TokenId>& ids) const = 0;

  /// Patterns that run over the text, for the budget.
  virtual std::size_t patterns() const { return normalizer_.patterns(); }

  /// How the spellings of tokens become text; null where text_of() says it.
  virtual const TextDecoder* decoder() const { return nullptr; }

  /// The bytes that a token of text stands for; control and unknown tokens are the caller's business.
  virtual std::string text_of(std::int32_t id) const = 0;

 protected:
  Normalizer normalizer_;
};

/// Errors: kBadData where scores and pieces disagree.
Result<std::unique_ptr<Encoder>> make_sentencepiece_encoder(const Vocabulary& vocabulary);

/// Every kind that looks words up one by one. Errors: those of Pattern::compile; kBadData where scores and pieces
/// disagree.
Result<std::unique_ptr<Encoder>> make_word_encoder(const Vocabulary& vocabulary);

}  // namespace butterfly
