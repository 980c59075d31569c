#include "butterfly/text/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

constexpr int kBytes = 256;

using Pair = std::uint64_t;  // left id in the upper half: ordered as pairs of ids are

Pair pair_of(std::uint32_t left, std::uint32_t right) {
  return (static_cast<Pair>(left) << 32) | right;
}

/// A different pre-token and how often it is there.
struct Word {
  std::vector<std::uint32_t> symbols;
  std::int64_t count = 0;
};

/// A merge that could be next, and the words to look for it in.
struct Candidate {
  std::int64_t count = 0;
  Pair pair = 0;
  std::vector<std::uint32_t> words{};

  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

/// Counts are kept as `tokenizers` keeps them, also where two ways lead to one token and a pair comes up a second time:
/// a merged pair keeps its count, and a new candidate knows only the words in which the pair is new.
class Merges {
 public:
  Merges(std::vector<std::string> pieces, std::vector<Word> words)
      : pieces_(std::move(pieces)), words_(std::move(words)) {
    for (std::size_t id = 0; id < pieces_.size(); ++id) ids_.emplace(pieces_[id], static_cast<std::uint32_t>(id));
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const std::vector<std::uint32_t>& symbols = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const Pair pair = pair_of(symbols[i], symbols[i + 1]);
        counts_[pair] += words_[w].count;
        note(pair, w);
      }
    }
    queue_new();
  }

  void run(std::size_t vocab, std::int64_t min_count) {
    while (pieces_.size() < vocab && !queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      Candidate best = std::move(queue_.back());
      queue_.pop_back();
      const std::int64_t count = counts_[best.pair];
      if (best.count != count) {
        best.count = count;
        push(std::move(best));
        continue;
      }
      if (count < std::max<std::int64_t>(1, min_count)) break;
      apply(best);
    }
  }

  std::vector<std::string> take_pieces() { return std::move(pieces_); }

  /// "left right", first merge first; a pair that came up twice stands where it came up last.
  std::vector<std::string> list() const {
    std::unordered_map<Pair, std::size_t> last;
    for (std::size_t i = 0; i < merged_.size(); ++i) last[merged_[i]] = i;
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < merged_.size(); ++i) {
      if (last[merged_[i]] != i) continue;
      lines.push_back(pieces_[merged_[i] >> 32] + ' ' + pieces_[merged_[i] & 0xFFFFFFFFu]);
    }
    return lines;
  }

 private:
  void apply(const Candidate& best) {
    const auto left = static_cast<std::uint32_t>(best.pair >> 32);
    const auto right = static_cast<std::uint32_t>(best.pair);
    std::string piece = pieces_[left] + pieces_[right];
    const auto [known, is_new] = ids_.try_emplace(piece, static_cast<std::uint32_t>(pieces_.size()));
    if (is_new) pieces_.push_back(std::move(piece));
    merged_.push_back(best.pair);
    for (std::uint32_t w : best.words) merge_in(w, left, right, known->second);
    queue_new();
  }

  void merge_in(std::uint32_t w, std::uint32_t left, std::uint32_t right, std::uint32_t merged) {
    std::vector<std::uint32_t>& symbols = words_[w].symbols;
    const std::int64_t count = words_[w].count;
    std::size_t to = 0;
    for (std::size_t from = 0; from < symbols.size(); ++to) {
      if (symbols[from] != left || from + 1 == symbols.size() || symbols[from + 1] != right) {
        symbols[to] = symbols[from++];
        continue;
      }
      from += 2;
      if (to > 0) {
        counts_[pair_of(symbols[to - 1], left)] -= count;
        gain(pair_of(symbols[to - 1], merged), w, count);
      }
      if (from < symbols.size()) {
        counts_[pair_of(right, symbols[from])] -= count;
        gain(pair_of(merged, symbols[from]), w, count);
      }
      symbols[to] = merged;
    }
    symbols.resize(to);
  }

  void gain(Pair pair, std::uint32_t w, std::int64_t count) {
    counts_[pair] += count;
    note(pair, w);
  }

  void note(Pair pair, std::uint32_t w) {
    std::vector<std::uint32_t>& words = new_words_[pair];
    if (words.empty() || words.back() != w) words.push_back(w);
  }

  void queue_new() {
    for (auto& [pair, words] : new_words_) {
      const std::int64_t count = counts_[pair];
      if (count > 0) push({.count = count, .pair = pair, .words = std::move(words)});
    }
    new_words_.clear();
  }

  void push(Candidate candidate) {
    queue_.push_back(std::move(candidate));
    std::push_heap(queue_.begin(), queue_.end());
  }

  std::vector<std::string> pieces_;
  std::vector<Word> words_;
  std::unordered_map<std::string, std::uint32_t> ids_;
  std::unordered_map<Pair, std::int64_t> counts_;
  std::unordered_map<Pair, std::vector<std::uint32_t>> new_words_;  // since queue_new()
  std::vector<Candidate> queue_;                                    // a heap
  std::vector<Pair> merged_;
};

}  // namespace

Result<BpeTrainer> BpeTrainer::create(const BpeTrainerOptions& options) {
  if (options.vocab < kBytes + 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a vocabulary of {} tokens cannot hold the {} bytes and {}, at least {} are needed",
                      options.vocab, kBytes, options.end_of_text, kBytes + 1);
  }
  BF_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(std::string(pre_tokenizer_pattern(PreTokenizer::kGpt2)),
                                                        PatternSource::kBuiltIn));
  return BpeTrainer(options, std::move(pattern));
}

Status BpeTrainer::add(std::string_view text) {
  if (const auto offset = find_invalid_utf8(text)) {
    return make_error(ErrorCode::kInvalidArgument, "the text is not valid UTF-8: byte 0x{:02X} at offset {}",
                      static_cast<unsigned char>(text[*offset]), *offset);
  }
  PatternBudget budget(text.size(), 1);
  std::vector<std::string_view> parts;
  BF_TRY(pattern_.split(text, budget, parts));
  for (std::string_view part : parts) ++counts_[std::string(part)];
  return {};
}

Result<Vocabulary> BpeTrainer::train() const {
  if (counts_.empty()) return make_error(ErrorCode::kInvalidArgument, "there are 0 words to learn a vocabulary from");
  // The bytes in the order of their characters; id 0 is the special token.
  const ByteAlphabet& alphabet = byte_alphabet();
  std::array<int, kBytes> order{};
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int byte) { return alphabet.code_point[static_cast<std::size_t>(byte)]; });
  std::vector<std::string> pieces{options_.end_of_text};
  std::array<std::uint32_t, kBytes> ids{};
  for (int byte : order) {
    ids[static_cast<std::size_t>(byte)] = static_cast<std::uint32_t>(pieces.size());
    pieces.push_back(alphabet.spelling[static_cast<std::size_t>(byte)]);
  }
  std::vector<Word> words;
  words.reserve(counts_.size());
  for (const auto& [text, count] : counts_) {
    Word word{.symbols = {}, .count = static_cast<std::int64_t>(count)};
    for (char byte : text) word.symbols.push_back(ids[static_cast<unsigned char>(byte)]);
    words.push_back(std::move(word));
  }
  Merges merges(std::move(pieces), std::move(words));
  merges.run(static_cast<std::size_t>(options_.vocab), static_cast<std::int64_t>(options_.min_count));

  Vocabulary vocabulary;
  vocabulary.kind = TokenizerKind::kByteBpe;
  vocabulary.pre_tokenizer = PreTokenizer::kGpt2;
  vocabulary.merges = merges.list();
  vocabulary.pieces = merges.take_pieces();
  vocabulary.types.assign(vocabulary.pieces.size(), TokenType::kNormal);
  vocabulary.types[0] = TokenType::kControl;
  vocabulary.bos = vocabulary.eos = TokenId(0);
  vocabulary.end_tokens = {TokenId(0)};
  vocabulary.add_bos = true;
  return vocabulary;
}

}  // namespace butterfly
