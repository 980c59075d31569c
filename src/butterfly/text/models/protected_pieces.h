// The user-defined pieces of a SentencePiece model: its normalizer leaves them alone, and merges do not cross their
// ends. Immutable after creation, thread-safe; borrows the vocabulary.
#pragma once

#include "butterfly/text/models/byte_trie.h"
#include "butterfly/text/steps/normalizer.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

class ProtectedPieces : public ProtectedTexts {
 public:
  ProtectedPieces() = default;
  explicit ProtectedPieces(const Vocabulary& vocabulary) {
    std::vector<std::pair<std::string_view, std::int32_t>> entries;
    for (int id = 0; id < vocabulary.size(); ++id) {
      const auto index = static_cast<std::size_t>(id);
      if (vocabulary.types[index] == TokenType::kUserDefined) entries.emplace_back(vocabulary.pieces[index], id);
    }
    empty_ = entries.empty();
    pieces_ = ByteTrie(std::move(entries));
  }

  bool empty() const { return empty_; }
  std::size_t match(std::string_view text) const override { return pieces_.longest(text).size; }
  ByteTrie::Match longest(std::string_view text) const { return pieces_.longest(text); }

 private:
  ByteTrie pieces_;
  bool empty_ = true;
};

}  // namespace butterfly
