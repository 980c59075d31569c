#include "butterfly/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "butterfly/text/encoder.h"
#include "butterfly/text/special_tokens.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

constexpr std::size_t kTextBytesMax = std::size_t{1} << 29;  // with U+2581 for each space still under 2^31

Status check_id(TokenId id, const char* name, int size) {
  if (id.value >= -1 && id.value < size) return {};
  return make_error(ErrorCode::kBadData, "the {} token is {}, the vocabulary has {} tokens", name, id.value, size);
}

Status check(const Vocabulary& vocabulary) {
  if (vocabulary.pieces.empty()) return make_error(ErrorCode::kBadData, "the vocabulary has no tokens");
  if (vocabulary.types.size() != vocabulary.pieces.size()) {
    return make_error(ErrorCode::kBadData, "the vocabulary has {} pieces and {} token types", vocabulary.pieces.size(),
                      vocabulary.types.size());
  }
  const int size = vocabulary.size();
  BF_TRY(check_id(vocabulary.bos, "first (bos)", size));
  BF_TRY(check_id(vocabulary.eos, "last (eos)", size));
  BF_TRY(check_id(vocabulary.unknown, "unknown", size));
  for (TokenId id : vocabulary.end_tokens) BF_TRY(check_id(id, "end", size));
  if (vocabulary.add_bos && vocabulary.bos.value < 0) {
    return make_error(ErrorCode::kBadData,
                      "the vocabulary wants texts to start with its first (bos) token but has none");
  }
  return {};
}

/// Where the token itself stands in a match, without the white space that it swallows.
std::size_t own_begin(const SpecialTokens::Match& match, std::string_view text, const Vocabulary& vocabulary) {
  const std::string& piece = vocabulary.pieces[static_cast<std::size_t>(match.id)];
  const std::size_t found = text.substr(0, match.end).find(piece, match.begin);
  return found == std::string_view::npos ? match.begin : found;
}

/// Whether a special token counts where it stands.
bool counts(const SpecialTokens::Match& match, std::string_view text, const Vocabulary& vocabulary,
            const EncodeOptions& options) {
  if (options.marks.empty()) return true;
  const auto index = static_cast<std::size_t>(match.id);
  const auto& guarded = options.guarded;
  const bool free = vocabulary.types[index] == TokenType::kUserDefined &&
                    std::find(guarded.begin(), guarded.end(), TokenId{match.id}) == guarded.end();
  if (free) return true;
  const std::size_t begin = own_begin(match, text, vocabulary);
  const std::size_t end = std::min(match.end, begin + vocabulary.pieces[index].size());
  return options.marks.substr(begin, end - begin).find_first_not_of('\0') == std::string_view::npos;
}

/// The next special token that counts; those that do not are text.
SpecialTokens::Match next_special(const SpecialTokens& special, std::string_view text, std::size_t from,
                                  const Vocabulary& vocabulary, const EncodeOptions& options) {
  using Which = SpecialTokens::Which;
  for (std::size_t at = from;;) {
    const SpecialTokens::Match match =
        special.find(text, at, options.parse_special ? Which::kAll : Which::kUserDefined);
    if (match.id < 0 || counts(match, text, vocabulary, options)) return match;
    // Perhaps a shorter one in the same place is everybody's.
    const std::size_t begin = own_begin(match, text, vocabulary);
    const SpecialTokens::Match shorter = special.find(text.substr(0, match.end), begin, Which::kUserDefined);
    if (shorter.id >= 0 && shorter.begin == begin && counts(shorter, text, vocabulary, options)) return shorter;
    at = begin + 1;
  }
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  SpecialTokens special;
  std::unique_ptr<Encoder> encoder;  // borrows `vocabulary`
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::create(Vocabulary vocabulary) {
  if (vocabulary.kind == TokenizerKind::kNone) {
    return make_error(ErrorCode::kUnsupported, "the model has no tokenizer, only token ids");
  }
  BF_TRY(check(vocabulary));
  auto impl = std::make_unique<Impl>();
  impl->vocabulary = std::move(vocabulary);
  BF_ASSIGN_OR_RETURN(impl->special, SpecialTokens::create(impl->vocabulary));
  if (impl->vocabulary.kind == TokenizerKind::kSentencePiece) {
    BF_ASSIGN_OR_RETURN(impl->encoder, make_sentencepiece_encoder(impl->vocabulary));
  } else {
    BF_ASSIGN_OR_RETURN(impl->encoder, make_byte_bpe_encoder(impl->vocabulary));
  }
  return Tokenizer(std::move(impl));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kTextBytesMax) {
    return make_error(ErrorCode::kInvalidArgument, "the text has {} bytes, at most {} are possible", text.size(),
                      kTextBytesMax);
  }
  if (const auto offset = find_invalid_utf8(text)) {
    return make_error(ErrorCode::kInvalidArgument, "the text is not valid UTF-8: byte 0x{:02X} at offset {}",
                      static_cast<unsigned char>(text[*offset]), *offset);
  }
  const Vocabulary& vocabulary = impl_->vocabulary;
  if (!options.marks.empty() && options.marks.size() != text.size()) {
    return make_error(ErrorCode::kInvalidArgument, "the text has {} bytes and {} marks", text.size(),
                      options.marks.size());
  }
  std::vector<TokenId> ids;
  const bool add_bos = options.add_bos && vocabulary.add_bos;
  if (add_bos) ids.push_back(vocabulary.bos);
  PatternBudget budget(text.size(), impl_->encoder->patterns());
  std::size_t position = 0;
  TextPlace place = TextPlace::kStart;
  while (position < text.size()) {
    const SpecialTokens::Match match = next_special(impl_->special, text, position, vocabulary, options);
    const std::size_t end = match.id < 0 ? text.size() : match.begin;
    if (end > position) BF_TRY(impl_->encoder->encode(text.substr(position, end - position), place, budget, ids));
    if (match.id < 0) break;
    // A text that brings its own bos does not get a second one.
    const bool repeats_bos = add_bos && match.begin == 0 && match.id == vocabulary.bos.value;
    if (!repeats_bos) ids.emplace_back(match.id);
    position = match.end;
    place = TextPlace::kAfterSpecial;
  }
  return ids;
}

std::string Tokenizer::piece(TokenId token, Control control) const {
  const Vocabulary& vocabulary = impl_->vocabulary;
  if (token.value < 0 || token.value >= vocabulary.size()) return {};
  const auto index = static_cast<std::size_t>(token.value);
  const TokenType type = vocabulary.types[index];
  if (type == TokenType::kControl || type == TokenType::kUnknown) {
    return control == Control::kShown ? vocabulary.pieces[index] : std::string();
  }
  return impl_->encoder->text_of(token.value);
}

std::string Tokenizer::decode(const std::vector<TokenId>& tokens, Control control) const {
  const bool strips = impl_->vocabulary.kind == TokenizerKind::kSentencePiece && impl_->vocabulary.add_space_prefix;
  std::string text;
  for (TokenId token : tokens) text += piece(token, control);
  if (strips && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

const Vocabulary& Tokenizer::vocabulary() const {
  return impl_->vocabulary;
}

bool Tokenizer::is_end(TokenId token) const {
  const Vocabulary& vocabulary = impl_->vocabulary;
  if (token.value < 0) return false;
  const auto& ends = vocabulary.end_tokens;
  return token == vocabulary.eos || std::find(ends.begin(), ends.end(), token) != ends.end();
}

}  // namespace butterfly
