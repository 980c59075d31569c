// Unigram (https://arxiv.org/abs/1804.10959): of all ways to cover a word with pieces the one whose scores add up to
// the most, found from left to right.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "butterfly/text/models/byte_trie.h"
#include "butterfly/text/models/word_model.h"
#include "butterfly/text/steps/unicode.h"

namespace butterfly {

namespace {

constexpr double kUnknownPenalty = 10;
constexpr double kRebasedBelow = -100000;  // SentencePiece 0.2.3: sums in float start again, so that they stay exact
constexpr std::size_t kWordBytesMax = std::size_t{1} << 26;  // each byte may cost 16 while a word is looked at
constexpr std::size_t kWindow = 512;                         // bytes of a word, mostly

class UnigramModel : public WordModel {
 public:
  static Result<std::unique_ptr<WordModel>> create(const Vocabulary& vocabulary);

  Status encode(std::string_view word, Merger& merger, std::vector<TokenId>& ids) const override;

 private:
  explicit UnigramModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  struct Best {
    double score = 0;
    std::int32_t begin = -1;  // where the piece begins that ends here; -1: none does
    std::int32_t id = -1;     // -1: unknown
  };
  std::size_t extend(std::string_view word, std::size_t begin, std::span<Best> best) const;
  Status append(std::string_view word, std::span<Best> best, std::vector<TokenId>& ids) const;
  Status append_piece(std::string_view piece, std::int32_t id, std::vector<TokenId>& ids) const;
  void rebase(std::size_t begin, std::span<Best> best) const;
  void offer(Best& target, double score, std::size_t begin, std::int32_t id) const {
    const double sum = vocabulary_.float_scores ? static_cast<double>(static_cast<float>(score)) : score;
    if (target.begin < 0 || sum > target.score) target = {sum, static_cast<std::int32_t>(begin), id};
  }

  const Vocabulary& vocabulary_;
  ByteTrie pieces_;
  std::vector<double> scores_;  // by id
  std::vector<std::int32_t> bytes_;
  double unknown_score_ = 0;
  std::size_t longest_ = 4;  // bytes of a piece, or of a character that none covers
};

Result<std::unique_ptr<WordModel>> UnigramModel::create(const Vocabulary& vocabulary) {
  std::unique_ptr<UnigramModel> model(new UnigramModel(vocabulary));
  if (vocabulary.scores.size() != vocabulary.pieces.size()) {
    return make_error(ErrorCode::kBadData, "the vocabulary has {} pieces and {} scores", vocabulary.pieces.size(),
                      vocabulary.scores.size());
  }
  std::vector<std::pair<std::string_view, std::int32_t>> entries;
  model->scores_ = vocabulary.scores;
  double lowest = std::numeric_limits<double>::max();
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    const TokenType type = vocabulary.types[index];
    const double score = vocabulary.scores[index];
    if (std::isnan(score)) return make_error(ErrorCode::kBadData, "the score of token {} is not a number", id);
    if (type == TokenType::kNormal) lowest = std::min(lowest, score);
    const bool inside = type == TokenType::kUserDefined && vocabulary.user_defined_inside;
    // SentencePiece prefers them to whatever else covers the same bytes; the files of others score them as usual.
    if (inside) {
      const auto bytes = static_cast<double>(vocabulary.pieces[index].size());
      model->scores_[index] = vocabulary.float_scores ? bytes * vocabulary.highest_score - 0.1 : 0.0;
    }
    if (type == TokenType::kNormal || inside) {
      entries.emplace_back(vocabulary.pieces[index], id);
      model->longest_ = std::max(model->longest_, vocabulary.pieces[index].size());
    }
  }
  model->pieces_ = ByteTrie(std::move(entries));
  model->bytes_ = byte_piece_ids(vocabulary);
  model->unknown_score_ = (lowest == std::numeric_limits<double>::max() ? 0 : lowest) - kUnknownPenalty;
  if (vocabulary.float_scores) model->unknown_score_ = static_cast<float>(model->unknown_score_);
  return std::unique_ptr<WordModel>(std::move(model));
}

/// Offers every piece that begins at `begin`; gives the end of the longest.
std::size_t UnigramModel::extend(std::string_view word, std::size_t begin, std::span<Best> best) const {
  const std::size_t character = first_character(word.substr(begin)).size;
  const double so_far = best[begin].score;
  bool covered = false;  // a piece is just this character
  std::size_t longest = begin;
  ByteTrie::Node node = ByteTrie::kRoot;
  for (std::size_t end = begin; end < word.size();) {
    node = pieces_.child(node, word[end++]);
    if (node == ByteTrie::kNone) break;
    const std::int32_t id = pieces_.value(node);
    if (id < 0) continue;
    offer(best[end], so_far + scores_[static_cast<std::size_t>(id)], begin, id);
    covered = covered || end - begin == character;
    longest = end;
  }
  if (covered) return longest;
  offer(best[begin + character], so_far + unknown_score_, begin, -1);
  return std::max(longest, begin + character);
}

/// Of a long word that is a text, what no later piece can change becomes ids now and then: what is looked at stays in
/// the cache.
Status UnigramModel::encode(std::string_view word, Merger& /*merger*/, std::vector<TokenId>& ids) const {
  if (word.size() > kWordBytesMax) {
    return make_error(ErrorCode::kUnsupported, "a word has {} bytes, a Unigram vocabulary can take {}", word.size(),
                      kWordBytesMax);
  }
  std::array<Best, kWindow> few;
  std::vector<Best> many;
  std::span<Best> best(few);
  std::size_t reach = 0;
  for (std::size_t begin = 0; begin < word.size(); begin += first_character(word.substr(begin)).size) {
    // A piece may end inside a character only in a file that is not text.
    if (begin > 0 && best[begin].begin < 0) continue;
    if (begin >= kWindow / 2 && begin == reach && best[begin].id >= 0) {
      const double score = best[begin].score;
      BF_TRY(append(word.substr(0, begin), best, ids));
      std::fill_n(best.begin(), begin + 1, Best{});
      best[0].score = score;
      word.remove_prefix(begin);
      begin = reach = 0;
    }
    if (const std::size_t needed = std::min(begin + longest_, word.size()) + 1; needed > best.size()) {
      std::vector<Best> larger(std::max(needed, 2 * best.size()));
      std::ranges::copy(best, larger.begin());
      many = std::move(larger);
      best = many;
    }
    if (vocabulary_.float_scores && best[begin].score < kRebasedBelow) rebase(begin, best);
    reach = std::max(reach, extend(word, begin, best));
  }
  return append(word, best, ids);
}

/// Takes the sum at `begin` from every sum that is still compared.
void UnigramModel::rebase(std::size_t begin, std::span<Best> best) const {
  const double base = best[begin].score;
  const std::size_t end = std::min(best.size(), begin + longest_ + 1);
  for (std::size_t i = begin; i < end; ++i) {
    if (best[i].begin >= 0) best[i].score = static_cast<double>(static_cast<float>(best[i].score - base));
  }
}

Status UnigramModel::append(std::string_view word, std::span<Best> best, std::vector<TokenId>& ids) const {
  // Turn the chain around, so that it leads from the start to the end: `begin` becomes where the piece ends.
  std::size_t end = word.size();
  Best here = best[end];
  while (end > 0) {
    const auto begin = static_cast<std::size_t>(here.begin);
    const Best before = best[begin];
    best[begin] = {0, static_cast<std::int32_t>(end), here.id};
    end = begin;
    here = before;
  }
  for (std::size_t begin = 0; begin < word.size();) {
    auto last = static_cast<std::size_t>(best[begin].begin);
    const std::int32_t id = best[begin].id;
    while (id < 0 && vocabulary_.fuse_unknown && last < word.size() && best[last].id < 0) {
      last = static_cast<std::size_t>(best[last].begin);
    }
    BF_TRY(append_piece(word.substr(begin, last - begin), id, ids));
    begin = last;
  }
  return {};
}

Status UnigramModel::append_piece(std::string_view piece, std::int32_t id, std::vector<TokenId>& ids) const {
  if (id >= 0) {
    ids.emplace_back(id);
    return {};
  }
  const auto token = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (vocabulary_.byte_fallback && std::ranges::all_of(piece, [&](char byte) { return token(byte) >= 0; })) {
    for (char byte : piece) ids.emplace_back(token(byte));
    return {};
  }
  return append_unknown(vocabulary_, piece, ids);
}

}  // namespace

Result<std::unique_ptr<WordModel>> make_unigram(const Vocabulary& vocabulary) {
  return UnigramModel::create(vocabulary);
}

}  // namespace butterfly
