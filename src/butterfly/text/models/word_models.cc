// WordPiece, whole words, and RWKV's longest match.
#include <algorithm>
#include <charconv>

#include "butterfly/base/text/printable.h"
#include "butterfly/text/models/byte_trie.h"
#include "butterfly/text/models/word_model.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

/// Added tokens are found before a model runs; those of SentencePiece's own files are pieces, too.
bool is_text(TokenType type, const Vocabulary& vocabulary) {
  return type == TokenType::kNormal || (type == TokenType::kUserDefined && vocabulary.user_defined_inside);
}

ByteTrie trie_of_pieces(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, std::int32_t>> entries;
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    if (is_text(vocabulary.types[index], vocabulary)) entries.emplace_back(vocabulary.pieces[index], id);
  }
  return ByteTrie(std::move(entries));
}

/// Greedy: at each place the longest piece. A word that cannot be covered is unknown as a whole.
class WordPieceModel : public WordModel {
 public:
  explicit WordPieceModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary), pieces_(trie_of_pieces(vocabulary)) {
    first_ = pieces_.walk(ByteTrie::kRoot, vocabulary.word_prefix);
    has_first_ = vocabulary.word_prefix.empty() || first_ != ByteTrie::kNone;
    continued_ = pieces_.walk(ByteTrie::kRoot, vocabulary.continuing_prefix);
    has_continued_ = vocabulary.continuing_prefix.empty() || continued_ != ByteTrie::kNone;
  }

  Status encode(std::string_view word, Merger& /*merger*/, std::vector<TokenId>& ids) const override {
    const std::size_t before = ids.size();
    if (characters(word) > vocabulary_.word_characters_max) return append_unknown(vocabulary_, word, ids);
    bool first = true;
    for (std::size_t i = 0; i < word.size(); first = false) {
      ByteTrie::Match match;
      if (first ? has_first_ : has_continued_) match = longest_from(first ? first_ : continued_, word.substr(i));
      // llama.cpp's vocabularies have a piece for the mark of a word's start alone, too.
      if (first && match.size == 0 && first_ != ByteTrie::kRoot && pieces_.value(first_) >= 0) {
        ids.emplace_back(pieces_.value(first_));
        continue;
      }
      if (match.size == 0) {
        ids.resize(before, TokenId{});
        return append_unknown(vocabulary_, word, ids);
      }
      ids.emplace_back(match.value);
      i += match.size;
    }
    return {};
  }

 private:
  static std::size_t characters(std::string_view word) {
    std::size_t count = 0;
    for (char byte : word) count += (byte & 0xC0) != 0x80 ? 1 : 0;
    return count;
  }

  ByteTrie::Match longest_from(ByteTrie::Node node, std::string_view text) const {
    ByteTrie::Match best;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = pieces_.child(node, text[i]);
      if (node == ByteTrie::kNone) break;
      if (pieces_.value(node) >= 0) best = {i + 1, pieces_.value(node)};
    }
    return best;
  }

  const Vocabulary& vocabulary_;
  ByteTrie pieces_;
  ByteTrie::Node first_ = ByteTrie::kRoot;  // where the first piece of a word begins in the trie, and where the others
  ByteTrie::Node continued_ = ByteTrie::kRoot;
  bool has_first_ = true;
  bool has_continued_ = true;
};

class WordLevelModel : public WordModel {
 public:
  explicit WordLevelModel(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), pieces_(trie_of_pieces(vocabulary)), bytes_(byte_piece_ids(vocabulary)) {}

  bool is_worth_keeping() const override { return false; }

  Status encode(std::string_view word, Merger& /*merger*/, std::vector<TokenId>& ids) const override {
    const ByteTrie::Node node = pieces_.walk(ByteTrie::kRoot, word);
    if (node != ByteTrie::kNone && pieces_.value(node) >= 0) {
      ids.emplace_back(pieces_.value(node));
      return {};
    }
    const auto byte_token = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (vocabulary_.byte_fallback && std::ranges::all_of(word, [&](char byte) { return byte_token(byte) >= 0; })) {
      for (char byte : word) ids.emplace_back(byte_token(byte));
      return {};
    }
    return append_unknown(vocabulary_, word, ids);
  }

 private:
  const Vocabulary& vocabulary_;
  ByteTrie pieces_;
  std::vector<std::int32_t> bytes_;
};

class LongestMatchModel : public WordModel {
 public:
  explicit LongestMatchModel(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), pieces_(trie_of_pieces(vocabulary)) {}

  Status encode(std::string_view word, Merger& /*merger*/, std::vector<TokenId>& ids) const override {
    for (std::size_t i = 0; i < word.size();) {
      const ByteTrie::Match match = pieces_.longest(word.substr(i));
      if (match.size == 0) BF_TRY(append_unknown(vocabulary_, word.substr(i, 1), ids));
      if (match.size > 0) ids.emplace_back(match.value);
      i += std::max<std::size_t>(match.size, 1);
    }
    return {};
  }

 private:
  const Vocabulary& vocabulary_;
  ByteTrie pieces_;
};

}  // namespace

int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  return error == std::errc() && end == piece.data() + 5 ? value : -1;
}

std::vector<std::int32_t> byte_piece_ids(const Vocabulary& vocabulary) {
  std::vector<std::int32_t> ids(256, -1);
  for (int id = 0; id < vocabulary.size(); ++id) {
    const int byte = byte_of_piece(vocabulary.pieces[static_cast<std::size_t>(id)]);
    if (byte >= 0 && ids[static_cast<std::size_t>(byte)] < 0) ids[static_cast<std::size_t>(byte)] = id;
  }
  return ids;
}

Status append_unknown(const Vocabulary& vocabulary, std::string_view text, std::vector<TokenId>& ids) {
  if (vocabulary.unknown.value >= 0) {
    ids.push_back(vocabulary.unknown);
    return {};
  }
  if (vocabulary.drops_unknown) return {};
  return make_error(ErrorCode::kBadData, "the vocabulary has no token for \"{}\" and no unknown token",
                    printable(std::string(text.substr(0, 64))));
}

std::unique_ptr<WordModel> make_word_piece(const Vocabulary& vocabulary) {
  return std::make_unique<WordPieceModel>(vocabulary);
}

std::unique_ptr<WordModel> make_word_level(const Vocabulary& vocabulary) {
  return std::make_unique<WordLevelModel>(vocabulary);
}

std::unique_ptr<WordModel> make_longest_match(const Vocabulary& vocabulary) {
  return std::make_unique<LongestMatchModel>(vocabulary);
}

}  // namespace butterfly
