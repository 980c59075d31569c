// Byte-level BPE (GPT-2): a pattern cuts the text into pre-tokens, each pre-token starts as its bytes, and pairs merge
// by rank. Pieces are spelled in an alphabet of 256 visible characters, one per byte.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "butterfly/base/range.h"
#include "butterfly/text/byte_alphabet.h"
#include "butterfly/text/encoder.h"
#include "butterfly/text/merge.h"
#include "butterfly/text/merge_table.h"
#include "butterfly/text/pattern.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

bool is_published(const std::string& expression) {
  constexpr std::array kNamed{PreTokenizer::kGpt2, PreTokenizer::kLlama3, PreTokenizer::kQwen2};
  return std::any_of(kNamed.begin(), kNamed.end(),
                     [&](PreTokenizer named) { return pre_tokenizer_pattern(named) == expression; });
}

class ByteBpeEncoder : public Encoder {
 public:
  static Result<std::unique_ptr<Encoder>> create(const Vocabulary& vocabulary);

  Status encode(std::string_view text, TextPlace place, PatternBudget& budget,
                std::vector<TokenId>& ids) const override;
  std::size_t patterns() const override { return patterns_.size(); }
  std::string text_of(std::int32_t id) const override;

 private:
  explicit ByteBpeEncoder(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  Status compile_patterns();
  Result<std::vector<std::string_view>> pre_tokens(std::string_view text, PatternBudget& budget) const;
  Status merge_pre_token(std::string_view pre_token, Merger& merger, std::vector<TokenId>& ids) const;

  const Vocabulary& vocabulary_;
  std::vector<Pattern> patterns_;  // each cuts what the ones before it left
  PieceMap pieces_;
  MergeTable merges_;
  std::array<std::int32_t, 256> bytes_{};  // by byte; -1: no such token
};

Result<std::unique_ptr<Encoder>> ByteBpeEncoder::create(const Vocabulary& vocabulary) {
  std::unique_ptr<ByteBpeEncoder> encoder(new ByteBpeEncoder(vocabulary));
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    const TokenType type = vocabulary.types[index];
    if (type == TokenType::kNormal || type == TokenType::kUserDefined) {
      encoder->pieces_.try_emplace(vocabulary.pieces[index], id);
    }
  }
  encoder->merges_ = MergeTable(vocabulary.merges, encoder->pieces_);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto piece = encoder->pieces_.find(byte_alphabet().spelling[byte]);
    encoder->bytes_[byte] = piece == encoder->pieces_.end() ? -1 : piece->second;
  }
  BF_TRY(encoder->compile_patterns());
  return std::unique_ptr<Encoder>(std::move(encoder));
}

Status ByteBpeEncoder::compile_patterns() {
  std::vector<std::string> expressions;
  if (vocabulary_.pre_tokenizer == PreTokenizer::kCustom) {
    expressions.push_back(vocabulary_.custom_pattern);
    const auto& further = vocabulary_.further_patterns;
    expressions.insert(expressions.end(), further.begin(), further.end());
  } else {
    expressions.emplace_back(pre_tokenizer_pattern(vocabulary_.pre_tokenizer));
  }
  constexpr std::size_t kPatternsMax = 16;
  if (expressions.size() > kPatternsMax) {
    return make_error(ErrorCode::kUnsupported, "the pre-tokenizer has {} patterns, at most {} are supported",
                      expressions.size(), kPatternsMax);
  }
  for (const std::string& expression : expressions) {
    const PatternSource source = is_published(expression) ? PatternSource::kBuiltIn : PatternSource::kUntrusted;
    BF_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(expression, source));
    patterns_.push_back(std::move(pattern));
  }
  return {};
}

Result<std::vector<std::string_view>> ByteBpeEncoder::pre_tokens(std::string_view text, PatternBudget& budget) const {
  std::vector<std::string_view> parts{text};
  for (const Pattern& pattern : patterns_) {
    std::vector<std::string_view> finer;
    for (std::string_view part : parts) BF_TRY(pattern.split(part, budget, finer));
    parts = std::move(finer);
  }
  return parts;
}

Status ByteBpeEncoder::encode(std::string_view text, TextPlace /*place*/, PatternBudget& budget,
                              std::vector<TokenId>& ids) const {
  std::string prefixed;
  if (vocabulary_.add_space_prefix && text.front() != ' ') {
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  BF_ASSIGN_OR_RETURN(const std::vector<std::string_view> parts, pre_tokens(text, budget));
  // Words repeat: each different one is merged once per text.
  std::unordered_map<std::string_view, Range<std::size_t>> seen;
  Merger merger;
  for (std::string_view part : parts) {
    const auto [entry, is_new] = seen.try_emplace(part);
    if (is_new) {
      entry->second.begin = ids.size();
      BF_TRY(merge_pre_token(part, merger, ids));
      entry->second.end = ids.size();
    } else {
      for (std::size_t i = entry->second.begin; i < entry->second.end; ++i) {
        const TokenId id = ids[i];
        ids.push_back(id);
      }
    }
  }
  return {};
}

Status ByteBpeEncoder::merge_pre_token(std::string_view pre_token, Merger& merger, std::vector<TokenId>& ids) const {
  if (vocabulary_.ignore_merges) {
    std::string spelling;
    for (char byte : pre_token) spelling += byte_alphabet().spelling[static_cast<unsigned char>(byte)];
    const auto piece = pieces_.find(spelling);
    if (piece != pieces_.end()) {
      ids.emplace_back(piece->second);
      return {};
    }
  }
  merger.clear();
  for (char byte : pre_token) {
    const std::int32_t id = bytes_[static_cast<unsigned char>(byte)];
    if (id < 0 && vocabulary_.unknown.value < 0) {
      return make_error(ErrorCode::kBadData, "the vocabulary has no token for byte 0x{:02X} and no unknown token",
                        static_cast<unsigned char>(byte));
    }
    merger.add(1, id);
  }
  merger.run([&](const MergeSymbol& left, const MergeSymbol& right) { return merges_.find(left.id, right.id); });
  merger.for_each(
      [&](const MergeSymbol& symbol) { ids.push_back(symbol.id >= 0 ? TokenId{symbol.id} : vocabulary_.unknown); });
  return {};
}

std::string ByteBpeEncoder::text_of(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  const std::string& piece = vocabulary_.pieces[index];
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

Result<std::unique_ptr<Encoder>> make_byte_bpe_encoder(const Vocabulary& vocabulary) {
  return ByteBpeEncoder::create(vocabulary);
}

}  // namespace butterfly
