// The models that turn one word, as a pre-tokenizer cuts it, into ids. Immutable after creation, thread-safe; they
// borrow the vocabulary that they were made from.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/models/merge.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

class WordModel {
 public:
  virtual ~WordModel() = default;

  /// Whether a word that comes again is found faster than encoded again.
  virtual bool is_worth_keeping() const { return true; }

  /// Appends the ids of `word`, which is not empty. `merger` is memory to work in, one per thread. Errors: kBadData
  /// where a character has no token, unless the vocabulary drops such; kUnsupported for a word beyond the model's size.
  virtual Status encode(std::string_view word, Merger& merger, std::vector<TokenId>& ids) const = 0;
};

/// kBytes: words are the bytes of the text, pieces are spelled in the byte alphabet.
enum class WordSpelling : std::uint8_t { kBytes, kCharacters };

std::unique_ptr<WordModel> make_bpe(const Vocabulary& vocabulary, WordSpelling spelling);
std::unique_ptr<WordModel> make_word_piece(const Vocabulary& vocabulary);
/// Errors: kBadData where scores and pieces disagree.
Result<std::unique_ptr<WordModel>> make_unigram(const Vocabulary& vocabulary);
std::unique_ptr<WordModel> make_word_level(const Vocabulary& vocabulary);
/// RWKV's: at each place the longest token.
std::unique_ptr<WordModel> make_longest_match(const Vocabulary& vocabulary);

/// "<0x0A>" -> 10; -1 for anything else.
int byte_of_piece(std::string_view piece);

/// The ids of the 256 byte pieces; -1 where there is none.
std::vector<std::int32_t> byte_piece_ids(const Vocabulary& vocabulary);

/// Appends the unknown token for `text`. Errors: kBadData where there is none, unless the vocabulary drops such.
Status append_unknown(const Vocabulary& vocabulary, std::string_view text, std::vector<TokenId>& ids);

}  // namespace butterfly
