// BPE over the characters or the bytes of a word: each starts as a symbol, and pairs merge by rank.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "butterfly/text/models/merge_table.h"
#include "butterfly/text/models/word_model.h"
#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/steps/unicode.h"

namespace butterfly {

namespace {

/// The bytes that `piece` spells in the byte alphabet; empty where it has another character.
std::string bytes_of_spelling(std::string_view piece) {
  std::string bytes;
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Step step = utf8_step(piece.substr(i));
    const auto& byte_of = byte_alphabet().byte_of;
    const auto byte = step.kind == Utf8Step::Kind::kCharacter ? byte_of.find(step.code_point) : byte_of.end();
    if (byte == byte_of.end()) return {};
    bytes.push_back(byte->second);
    i += static_cast<std::size_t>(step.size);
  }
  return bytes;
}

class BpeModel : public WordModel {
 public:
  BpeModel(const Vocabulary& vocabulary, WordSpelling spelling);

  Status encode(std::string_view word, Merger& merger, std::vector<TokenId>& ids) const override;

 private:
  Status add_bytes(std::string_view word, Merger& merger) const;
  Status add_characters(std::string_view word, Merger& merger) const;
  std::int32_t character_id(std::string_view character, std::size_t begin, std::size_t end, std::string& spelled) const;
  bool add_fallback(std::string_view character, Merger& merger) const;

  const Vocabulary& vocabulary_;
  WordSpelling spelling_;
  PieceMap pieces_;
  MergeTable merges_;
  std::array<std::int32_t, 256> byte_symbols_{};               // kBytes: by byte; -1: no such token
  std::unordered_map<std::string, std::int32_t> whole_words_;  // kBytes: what ignore_merges looks a word up in
  std::vector<std::int32_t> basic_;  // kCharacters: by code point below 2^16 where no affix changes the spelling
  std::vector<std::int32_t> fallback_;
};

BpeModel::BpeModel(const Vocabulary& vocabulary, WordSpelling spelling) : vocabulary_(vocabulary), spelling_(spelling) {
  pieces_.reserve(static_cast<std::size_t>(vocabulary.size()));
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    const TokenType type = vocabulary.types[index];
    if (type != TokenType::kNormal && type != TokenType::kUserDefined) continue;
    pieces_.try_emplace(vocabulary.pieces[index], id);
  }
  const auto ranking = vocabulary.ranks_are_ids ? MergeTable::Ranking::kId : MergeTable::Ranking::kPlace;
  merges_ = MergeTable(vocabulary.merges, pieces_, {ranking, vocabulary.continuing_prefix});
  if (vocabulary.byte_fallback) fallback_ = byte_piece_ids(vocabulary);
  if (spelling == WordSpelling::kBytes) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto piece = pieces_.find(byte_alphabet().spelling[byte]);
      byte_symbols_[byte] = piece == pieces_.end() ? -1 : piece->second;
    }
    if (vocabulary.ignore_merges) {
      for (const auto& [piece, id] : pieces_) {
        std::string bytes = bytes_of_spelling(piece);
        if (!bytes.empty()) whole_words_.emplace(std::move(bytes), id);
      }
    }
    return;
  }
  basic_.assign(std::size_t{1} << 16, -1);
  for (const auto& [piece, id] : pieces_) {
    if (piece.empty() || piece.size() > 3) continue;
    const Utf8Step step = utf8_step(piece);
    const bool one = step.kind == Utf8Step::Kind::kCharacter && static_cast<std::size_t>(step.size) == piece.size();
    if (one) basic_[step.code_point] = id;
  }
}

Status BpeModel::encode(std::string_view word, Merger& merger, std::vector<TokenId>& ids) const {
  if (vocabulary_.ignore_merges) {
    if (spelling_ == WordSpelling::kBytes) {
      const auto whole = whole_words_.find(std::string(word));
      if (whole != whole_words_.end()) {
        ids.emplace_back(whole->second);
        return {};
      }
    } else if (const auto piece = pieces_.find(word); piece != pieces_.end()) {
      ids.emplace_back(piece->second);
      return {};
    }
  }
  merger.clear();
  BF_TRY(spelling_ == WordSpelling::kBytes ? add_bytes(word, merger) : add_characters(word, merger));
  merger.run([&](const MergeSymbol& left, const MergeSymbol& right) { return merges_.find(left.id, right.id); });
  merger.for_each([&](const MergeSymbol& symbol) { ids.emplace_back(symbol.id); });
  return {};
}

Status BpeModel::add_bytes(std::string_view word, Merger& merger) const {
  for (char byte : word) {
    const std::int32_t id = byte_symbols_[static_cast<unsigned char>(byte)];
    if (id >= 0) {
      merger.add(1, id);
    } else if (vocabulary_.unknown.value >= 0) {
      merger.add(1, vocabulary_.unknown.value);
    } else if (!vocabulary_.drops_unknown) {
      return make_error(ErrorCode::kBadData, "the vocabulary has no token for byte 0x{:02X} and no unknown token",
                        static_cast<unsigned char>(byte));
    }
  }
  return {};
}

/// The id of the character at [begin, end) of a word; `spelled` is memory to work in.
std::int32_t BpeModel::character_id(std::string_view word, std::size_t begin, std::size_t end,
                                    std::string& spelled) const {
  const std::string_view character = word.substr(begin, end - begin);
  const bool prefixed = begin > 0 && !vocabulary_.continuing_prefix.empty();
  const bool suffixed = end == word.size() && !vocabulary_.word_suffix.empty();
  if (!prefixed && !suffixed && character.size() <= 3) return basic_[first_character(character).code_point];
  spelled.clear();
  if (prefixed) spelled += vocabulary_.continuing_prefix;
  spelled += character;
  if (suffixed) spelled += vocabulary_.word_suffix;
  const auto piece = pieces_.find(spelled);
  return piece == pieces_.end() ? -1 : piece->second;
}

bool BpeModel::add_fallback(std::string_view character, Merger& merger) const {
  const auto token = [&](char byte) { return fallback_[static_cast<unsigned char>(byte)]; };
  if (fallback_.empty() || !std::ranges::all_of(character, [&](char byte) { return token(byte) >= 0; })) return false;
  for (char byte : character) merger.add(1, token(byte));
  return true;
}

Status BpeModel::add_characters(std::string_view word, Merger& merger) const {
  std::string spelled;
  std::uint32_t unknown_bytes = 0;  // waiting: neighbours may become one unknown token
  const auto add_unknown = [&] {
    if (unknown_bytes > 0) merger.add(unknown_bytes, vocabulary_.unknown.value);
    unknown_bytes = 0;
  };
  for (std::size_t begin = 0, end = 0; begin < word.size(); begin = end) {
    end = begin + first_character(word.substr(begin)).size;
    const auto size = static_cast<std::uint32_t>(end - begin);
    const std::int32_t id = character_id(word, begin, end, spelled);
    if (id >= 0) {
      add_unknown();
      merger.add(size, id);
      continue;
    }
    if (add_fallback(word.substr(begin, size), merger)) continue;
    if (vocabulary_.unknown.value < 0) {
      if (vocabulary_.drops_unknown) continue;
      return make_error(ErrorCode::kBadData, "the vocabulary has no token for \"{}\", no byte tokens, no unknown token",
                        word.substr(begin, size));
    }
    if (!vocabulary_.fuse_unknown) add_unknown();
    unknown_bytes += size;
  }
  add_unknown();
  return {};
}

}  // namespace

std::unique_ptr<WordModel> make_bpe(const Vocabulary& vocabulary, WordSpelling spelling) {
  return std::make_unique<BpeModel>(vocabulary, spelling);
}

}  // namespace butterfly
