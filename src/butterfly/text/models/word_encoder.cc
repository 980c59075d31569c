// A pre-tokenizer cuts the text into words, a model turns each into ids.
#include <optional>

#include "butterfly/text/models/encoder.h"
#include "butterfly/text/models/protected_pieces.h"
#include "butterfly/text/models/word_cache.h"
#include "butterfly/text/models/word_model.h"
#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/steps/pre_tokenizer.h"
#include "butterfly/text/steps/published_patterns.h"

namespace butterfly {

namespace {

/// The patterns of a byte-level vocabulary as steps.
std::vector<PreTokenizerStep> byte_level_steps(const Vocabulary& vocabulary) {
  using Kind = PreTokenizerStep::Kind;
  std::vector<PreTokenizerStep> steps;
  if (vocabulary.add_space_prefix) steps.push_back({.kind = Kind::kSpacePrefix});
  const auto split = [&](std::string_view pattern) {
    steps.push_back({.kind = Kind::kSplit, .pattern = std::string(pattern), .dialect = vocabulary.dialect});
  };
  if (vocabulary.pre_tokenizer == PreTokenizer::kCustom) {
    split(vocabulary.custom_pattern);
    for (const std::string& pattern : vocabulary.further_patterns) split(pattern);
  } else {
    split(pre_tokenizer_pattern(vocabulary.pre_tokenizer));
  }
  steps.push_back({.kind = Kind::kByteLevel});
  return steps;
}

/// Where words are spelled in the byte alphabet last of all, BPE can take the bytes themselves.
WordSpelling spelling_of(const Vocabulary& vocabulary, const std::vector<PreTokenizerStep>& steps) {
  const bool bytes = vocabulary.kind == TokenizerKind::kByteBpe || vocabulary.kind == TokenizerKind::kBpe;
  const bool last = !steps.empty() && steps.back().kind == PreTokenizerStep::Kind::kByteLevel;
  const bool plain = vocabulary.continuing_prefix.empty() && vocabulary.word_suffix.empty() &&
                     !vocabulary.byte_fallback && (vocabulary.unknown.value < 0 || !vocabulary.fuse_unknown);
  return bytes && last && plain ? WordSpelling::kBytes : WordSpelling::kCharacters;
}

Result<std::unique_ptr<WordModel>> make_model(const Vocabulary& vocabulary, WordSpelling spelling) {
  switch (vocabulary.kind) {
    case TokenizerKind::kWordPiece:
      return make_word_piece(vocabulary);
    case TokenizerKind::kUnigram:
      return make_unigram(vocabulary);
    case TokenizerKind::kWordLevel:
      return make_word_level(vocabulary);
    case TokenizerKind::kLongestMatch:
      return make_longest_match(vocabulary);
    default:
      return make_bpe(vocabulary, spelling);
  }
}

class WordEncoder : public Encoder {
 public:
  static Result<std::unique_ptr<Encoder>> create(const Vocabulary& vocabulary);

  const ProtectedTexts* kept() const override { return kept_.empty() ? nullptr : &kept_; }
  Status encode(std::string_view text, TextPlace place, PatternBudget& budget,
                std::vector<TokenId>& ids) const override;
  std::size_t patterns() const override { return normalizer_.patterns() + cutter_.patterns(); }
  const TextDecoder* decoder() const override { return decoder_ ? &*decoder_ : nullptr; }
  std::string text_of(std::int32_t id) const override;

 private:
  explicit WordEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  const Vocabulary& vocabulary_;
  ProtectedPieces kept_;
  WordCutter cutter_;
  std::unique_ptr<WordModel> model_;
  std::optional<TextDecoder> decoder_;
};

Result<std::unique_ptr<Encoder>> WordEncoder::create(const Vocabulary& vocabulary) {
  std::unique_ptr<WordEncoder> encoder(new WordEncoder(vocabulary));
  BF_ASSIGN_OR_RETURN(encoder->normalizer_, Normalizer::create(vocabulary.normalizers));
  const bool byte_level = vocabulary.kind == TokenizerKind::kByteBpe;
  const auto steps = byte_level ? byte_level_steps(vocabulary) : vocabulary.pre_tokenizers;
  const WordSpelling spelling = spelling_of(vocabulary, steps);
  const auto spelled =
      spelling == WordSpelling::kBytes ? WordCutter::Spelling::kBytes : WordCutter::Spelling::kAlphabet;
  BF_ASSIGN_OR_RETURN(encoder->cutter_, WordCutter::create(steps, spelled));
  BF_ASSIGN_OR_RETURN(encoder->model_, make_model(vocabulary, spelling));
  if (vocabulary.user_defined_inside) encoder->kept_ = ProtectedPieces(vocabulary);
  if (!byte_level && vocabulary.kind != TokenizerKind::kLongestMatch) {
    BF_ASSIGN_OR_RETURN(encoder->decoder_, TextDecoder::create(vocabulary.decoders));
  }
  return std::unique_ptr<Encoder>(std::move(encoder));
}

Status WordEncoder::encode(std::string_view text, TextPlace place, PatternBudget& budget,
                           std::vector<TokenId>& ids) const {
  Words words;
  words.words.push_back({text, place == TextPlace::kStart});
  BF_TRY(cutter_.run(budget, words));
  ids.reserve(ids.size() + text.size() / 4);
  // Words repeat: each different one is looked up once per text.
  constexpr std::size_t kCachedBytesMax = 256;
  const std::size_t kept_bytes_max = model_->is_worth_keeping() ? kCachedBytesMax : 0;
  WordCache seen;
  Merger merger;
  bool after_unknown = false;
  for (const Words::Word& word : words.words) {
    bool is_new = true;
    WordCache::Entry alone;
    WordCache::Entry& entry = word.text.size() <= kept_bytes_max ? seen.find(word.text, is_new) : alone;
    if (is_new) {
      entry.ids.begin = ids.size();
      BF_TRY(model_->encode(word.text, merger, ids));
      entry.ids.end = ids.size();
    } else {
      const auto [begin, end] = entry.ids;
      for (std::size_t i = begin; i < end; ++i) {
        const TokenId id = ids[i];
        ids.push_back(id);
      }
    }
    if (!vocabulary_.fuse_unknown_words) continue;
    const bool unknown = !ids.empty() && ids.back() == vocabulary_.unknown;
    if (unknown && after_unknown) {
      ids.pop_back();
      entry.ids = {ids.size() - 1, ids.size()};
    }
    after_unknown = unknown;
  }
  return {};
}

std::string WordEncoder::text_of(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  const std::string& piece = vocabulary_.pieces[index];
  if (vocabulary_.kind != TokenizerKind::kByteBpe) return piece;
  // User-defined tokens are spelled as the text itself.
  if (vocabulary_.types[index] != TokenType::kNormal) return piece;
  const auto& byte_of = byte_alphabet().byte_of;
  std::string text;
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Step step = utf8_step(std::string_view(piece).substr(i));
    const auto byte = step.kind == Utf8Step::Kind::kCharacter ? byte_of.find(step.code_point) : byte_of.end();
    if (byte == byte_of.end()) return piece;
    text.push_back(byte->second);
    i += static_cast<std::size_t>(step.size);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Encoder>> make_word_encoder(const Vocabulary& vocabulary) {
  return WordEncoder::create(vocabulary);
}

}  // namespace butterfly
