// Sentencepiece's BPE (https://arxiv.org/abs/1808.06226): spaces become U+2581, characters merge while the merged piece
// is in the vocabulary, best score first. Vocabularies trained by Hugging Face bring ranked merges instead of scores:
// then exactly those pairs merge.
#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>

#include "butterfly/text/models/encoder.h"
#include "butterfly/text/models/merge.h"
#include "butterfly/text/models/merge_table.h"
#include "butterfly/text/models/protected_pieces.h"
#include "butterfly/text/models/word_model.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

constexpr std::size_t kPairSlots = std::size_t{1} << 18;

std::size_t pair_slot(char32_t left, char32_t right) {
  const std::uint64_t key = (std::uint64_t{left} << 32) | right;
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> (64 - 18));
}

class SentencePieceEncoder : public Encoder {
 public:
  static Result<std::unique_ptr<Encoder>> create(const Vocabulary& vocabulary);

  Status encode(std::string_view text, TextPlace place, PatternBudget& budget,
                std::vector<TokenId>& ids) const override;
  const ProtectedTexts* kept() const override { return kept_.empty() ? nullptr : &kept_; }
  std::string text_of(std::int32_t id) const override;

 private:
  explicit SentencePieceEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  void note_inner_pairs(std::string_view piece);
  Status rank_scores();
  std::string normalised(std::string_view text, TextPlace place) const;
  Status merge(std::string_view part, Merger& merger, bool& after_unknown, std::vector<TokenId>& ids) const;
  Status append(std::string_view symbol, std::int32_t id, bool after_unknown, std::vector<TokenId>& ids) const;

  Status encode_unprotected(std::string_view bytes, std::vector<TokenId>& ids) const;

  const Vocabulary& vocabulary_;
  ProtectedPieces kept_;
  PieceMap pieces_;  // what text can become: normal and user-defined
  std::size_t piece_bytes_max_ = 0;
  // Neighbouring characters inside any piece, hashed. No merge can cross two characters that no piece has side by side,
  // so a text is cut there and small heaps do the work; a false positive only means one cut less.
  std::bitset<kPairSlots> inner_pairs_;
  std::vector<std::uint32_t> ranks_;  // by id; equal scores have equal ranks; unused where merges decide
  MergeTable merges_;
  std::array<std::int32_t, 256> bytes_{};  // by byte; -1: no such token
};

Result<std::unique_ptr<Encoder>> SentencePieceEncoder::create(const Vocabulary& vocabulary) {
  std::unique_ptr<SentencePieceEncoder> encoder(new SentencePieceEncoder(vocabulary));
  encoder->bytes_.fill(-1);
  BF_ASSIGN_OR_RETURN(encoder->normalizer_, Normalizer::create(vocabulary.normalizers));
  if (vocabulary.user_defined_inside) encoder->kept_ = ProtectedPieces(vocabulary);
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    const std::string& piece = vocabulary.pieces[index];
    const TokenType type = vocabulary.types[index];
    if (type == TokenType::kByte) {
      const int byte = byte_of_piece(piece);
      if (byte < 0)
        return make_error(ErrorCode::kBadData, "token {} is a byte, its piece \"{}\" names none", id, piece);
      auto& slot = encoder->bytes_[static_cast<std::size_t>(byte)];
      if (slot < 0) slot = id;
    } else if ((type == TokenType::kNormal || type == TokenType::kUserDefined) && !piece.empty()) {
      encoder->pieces_.try_emplace(piece, id);
      encoder->note_inner_pairs(piece);
      encoder->piece_bytes_max_ = std::max(encoder->piece_bytes_max_, piece.size());
    }
  }
  if (vocabulary.merges.empty()) {
    BF_TRY(encoder->rank_scores());
  } else {
    encoder->merges_ = MergeTable(vocabulary.merges, encoder->pieces_);
  }
  return std::unique_ptr<Encoder>(std::move(encoder));
}

void SentencePieceEncoder::note_inner_pairs(std::string_view piece) {
  char32_t previous = 0;
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Step step = utf8_step(piece.substr(i));
    if (i > 0) inner_pairs_.set(pair_slot(previous, step.code_point));
    previous = step.code_point;
    i += static_cast<std::size_t>(step.size);
  }
}

Status SentencePieceEncoder::rank_scores() {
  const std::vector<double>& scores = vocabulary_.scores;
  if (scores.size() != vocabulary_.pieces.size()) {
    return make_error(ErrorCode::kBadData, "the vocabulary has {} pieces and {} scores", vocabulary_.pieces.size(),
                      scores.size());
  }
  std::vector<double> distinct(scores);
  for (std::size_t id = 0; id < distinct.size(); ++id) {
    if (std::isnan(distinct[id])) return make_error(ErrorCode::kBadData, "the score of token {} is not a number", id);
  }
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  ranks_.reserve(scores.size());
  for (double score : scores) {
    const auto place = std::lower_bound(distinct.begin(), distinct.end(), score, std::greater<>());
    ranks_.push_back(static_cast<std::uint32_t>(place - distinct.begin()));
  }
  return {};
}

std::string SentencePieceEncoder::normalised(std::string_view text, TextPlace place) const {
  std::string result;
  result.reserve(text.size() + text.size() / 2);
  const bool has_one = text.starts_with(' ') || text.starts_with(kVisibleSpace);
  if (vocabulary_.add_space_prefix && (place == TextPlace::kStart || !vocabulary_.space_prefix_once) &&
      !(has_one && vocabulary_.space_prefix_if_none)) {
    result += kVisibleSpace;
  }
  for (char c : text) {
    if (c == ' ') {
      result += kVisibleSpace;
    } else {
      result.push_back(c);
    }
  }
  return result;
}

Status SentencePieceEncoder::encode(std::string_view text, TextPlace place, PatternBudget& /*budget*/,
                                    std::vector<TokenId>& ids) const {
  if (normalizer_.empty()) return encode_unprotected(normalised(text, place), ids);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size() && !kept_.empty();) {
    const ByteTrie::Match match = kept_.longest(text.substr(i));
    if (match.size == 0) {
      ++i;
      continue;
    }
    if (i > begin) BF_TRY(encode_unprotected(text.substr(begin, i - begin), ids));
    ids.emplace_back(match.value);
    i += match.size;
    begin = i;
  }
  return begin < text.size() ? encode_unprotected(text.substr(begin), ids) : Status{};
}

Status SentencePieceEncoder::encode_unprotected(std::string_view bytes, std::vector<TokenId>& ids) const {
  Merger merger;
  bool after_unknown = false;
  std::size_t begin = 0;  // of the characters in `merger`
  char32_t previous = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (i > begin && !inner_pairs_.test(pair_slot(previous, step.code_point))) {
      BF_TRY(merge(bytes.substr(begin, i - begin), merger, after_unknown, ids));
      begin = i;
    }
    const auto size = static_cast<std::uint32_t>(step.size);
    const auto piece = pieces_.find(bytes.substr(i, size));
    merger.add(size, piece == pieces_.end() ? -1 : piece->second);
    previous = step.code_point;
    i += size;
  }
  return merge(bytes.substr(begin), merger, after_unknown, ids);
}

/// Merges the symbols of `part`, appends their ids and empties `merger`.
Status SentencePieceEncoder::merge(std::string_view part, Merger& merger, bool& after_unknown,
                                   std::vector<TokenId>& ids) const {
  if (vocabulary_.merges.empty()) {
    merger.run([&](const MergeSymbol& left, const MergeSymbol& right) -> std::optional<MergeResult> {
      const std::size_t size = left.size + right.size;
      if (size > piece_bytes_max_) return std::nullopt;
      const auto piece = pieces_.find(part.substr(left.begin, size));
      if (piece == pieces_.end()) return std::nullopt;
      return MergeResult{ranks_[static_cast<std::size_t>(piece->second)], piece->second};
    });
  } else {
    merger.run([&](const MergeSymbol& left, const MergeSymbol& right) { return merges_.find(left.id, right.id); });
  }
  Status status;
  merger.for_each([&](const MergeSymbol& symbol) {
    if (!status) return;
    const std::size_t before = ids.size();
    status = append(part.substr(symbol.begin, symbol.size), symbol.id, after_unknown, ids);
    after_unknown = symbol.id < 0 && (ids.size() == before || ids.back() == vocabulary_.unknown);
  });
  merger.clear();
  return status;
}

/// `after_unknown`: the symbol before this one became the unknown token.
Status SentencePieceEncoder::append(std::string_view symbol, std::int32_t id, bool after_unknown,
                                    std::vector<TokenId>& ids) const {
  const auto byte_token = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (id >= 0) {
    ids.emplace_back(id);
  } else if (std::all_of(symbol.begin(), symbol.end(), [&](char byte) { return byte_token(byte) >= 0; })) {
    for (char byte : symbol) ids.emplace_back(byte_token(byte));
  } else if (vocabulary_.unknown.value >= 0) {
    if (!after_unknown || !vocabulary_.fuse_unknown) ids.push_back(vocabulary_.unknown);
  } else {
    return make_error(ErrorCode::kBadData, "the vocabulary has no token for \"{}\", no byte tokens, no unknown token",
                      symbol);
  }
  return {};
}

std::string SentencePieceEncoder::text_of(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  const std::string& piece = vocabulary_.pieces[index];
  if (vocabulary_.types[index] == TokenType::kByte) return std::string(1, static_cast<char>(byte_of_piece(piece)));
  std::string text;
  for (std::size_t i = 0; i < piece.size();) {
    if (piece.compare(i, kVisibleSpace.size(), kVisibleSpace) == 0) {
      text.push_back(' ');
      i += kVisibleSpace.size();
    } else {
      text.push_back(piece[i++]);
    }
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Encoder>> make_sentencepiece_encoder(const Vocabulary& vocabulary) {
  return SentencePieceEncoder::create(vocabulary);
}

}  // namespace butterfly
