#include "butterfly/text/tokenizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "butterfly/text/models/encoder.h"
#include "butterfly/text/special_tokens.h"
#include "butterfly/text/utf8.h"
#include "butterfly/trace/trace.h"

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

/// Which special tokens count in text[begin, end) once it is normalised, where its marks are no longer known byte by
/// byte: one byte that is not the template's and no control token counts.
SpecialTokens::Which which_inside(const EncodeOptions& options, std::size_t begin, std::size_t end) {
  using Which = SpecialTokens::Which;
  if (!options.parse_special) return Which::kUserDefined;
  if (options.marks.empty()) return Which::kAll;
  const std::string_view marks = options.marks.substr(begin, end - begin);
  const bool own = std::all_of(marks.begin(), marks.end(), [](char mark) { return mark == 0; });
  return own ? Which::kAll : Which::kUserDefined;
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  SpecialTokens special;
  SpecialTokens normalised;  // those that are looked for in normalised text
  SpecialTokens marked;      // `special` and the control tokens of `normalised` as the model spells them
  std::unordered_map<std::int32_t, std::string> respelled;  // what the normalizer makes of the tokens of `normalised`
  std::unique_ptr<Encoder> encoder;                         // borrows `vocabulary`

  struct Work {
    SpecialTokens::Which which = SpecialTokens::Which::kAll;
    PatternBudget budget;
    std::vector<TokenId> ids;
  };
  Status find_special_tokens();
  Status encode_section(std::string_view section, TextPlace place, Work& work) const;
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
  if (impl->vocabulary.kind == TokenizerKind::kSentencePiece) {
    BF_ASSIGN_OR_RETURN(impl->encoder, make_sentencepiece_encoder(impl->vocabulary));
  } else {
    BF_ASSIGN_OR_RETURN(impl->encoder, make_word_encoder(impl->vocabulary));
  }
  BF_TRY(impl->find_special_tokens());
  return Tokenizer(std::move(impl));
}

Status Tokenizer::Impl::find_special_tokens() {
  std::vector<SpecialTokens::Spelling> plain;
  std::vector<SpecialTokens::Spelling> rewritten;
  std::vector<SpecialTokens::Spelling> written;
  const Normalizer& normalizer = encoder->normalizer();
  for (int id = 0; id < vocabulary.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    const TokenType type = vocabulary.types[index];
    const bool user_defined = type == TokenType::kUserDefined;
    if (type != TokenType::kUnknown && type != TokenType::kControl && !user_defined) continue;
    if (user_defined && vocabulary.user_defined_inside) continue;
    const std::string& piece = vocabulary.pieces[index];
    const auto& late = vocabulary.normalized;
    if (normalizer.empty() || std::find(late.begin(), late.end(), TokenId{id}) == late.end()) {
      plain.push_back({piece, id, type});
      written.push_back({piece, id, type});
      continue;
    }
    if (!user_defined) written.push_back({piece, id, type});
    PatternBudget budget(piece.size(), normalizer.patterns());
    BF_ASSIGN_OR_RETURN(std::string spelled, normalizer.run(piece, budget));
    if (spelled != piece) respelled.emplace(id, spelled);
    rewritten.push_back({std::move(spelled), id, type});
  }
  BF_ASSIGN_OR_RETURN(special, SpecialTokens::create(vocabulary, plain));
  BF_ASSIGN_OR_RETURN(normalised, SpecialTokens::create(vocabulary, rewritten));
  BF_ASSIGN_OR_RETURN(marked, SpecialTokens::create(vocabulary, written));
  return {};
}

/// `section` is text between two special tokens, or all of it.
Status Tokenizer::Impl::encode_section(std::string_view section, TextPlace place, Work& work) const {
  std::string rewritten;
  if (!encoder->normalizer().empty()) {
    BF_ASSIGN_OR_RETURN(rewritten, encoder->normalizer().run(section, work.budget, encoder->kept()));
    section = rewritten;
  }
  std::size_t position = 0;
  while (position < section.size()) {
    const SpecialTokens::Match match = normalised.find(section, position, work.which);
    const std::size_t end = match.id < 0 ? section.size() : match.begin;
    if (end > position) {
      BF_TRY(encoder->encode(section.substr(position, end - position), place, work.budget, work.ids));
    }
    if (match.id < 0) break;
    work.ids.emplace_back(match.id);
    position = match.end;
    place = TextPlace::kAfterSpecial;
  }
  return {};
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const trace::Scope scope(trace::Zone::kTextEncode, {.number = 1, .bytes = text.size()});
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
  Impl::Work work{.budget = PatternBudget(text.size(), impl_->encoder->patterns()), .ids = {}};
  const bool add_bos = options.add_bos && vocabulary.add_bos;
  if (add_bos && vocabulary.text_prefix.empty()) work.ids.push_back(vocabulary.bos);
  if (add_bos) work.ids.insert(work.ids.end(), vocabulary.text_prefix.begin(), vocabulary.text_prefix.end());
  // Marks say byte by byte what is the template's, which is lost where a text is normalised.
  const SpecialTokens& special = options.marks.empty() ? impl_->special : impl_->marked;
  std::size_t position = 0;
  TextPlace place = TextPlace::kStart;
  while (position < text.size()) {
    const SpecialTokens::Match match = next_special(special, text, position, vocabulary, options);
    const std::size_t end = match.id < 0 ? text.size() : match.begin;
    if (end > position) {
      work.which = which_inside(options, position, end);
      BF_TRY(impl_->encode_section(text.substr(position, end - position), place, work));
    }
    if (match.id < 0) break;
    // A text that brings its own bos does not get a second one.
    const bool repeats_bos = add_bos && match.begin == 0 && match.id == vocabulary.bos.value;
    if (!repeats_bos) work.ids.emplace_back(match.id);
    position = match.end;
    place = TextPlace::kAfterSpecial;
  }
  if (options.add_eos && vocabulary.add_eos) {
    if (vocabulary.text_suffix.empty()) work.ids.push_back(vocabulary.eos);
    work.ids.insert(work.ids.end(), vocabulary.text_suffix.begin(), vocabulary.text_suffix.end());
  }
  return std::move(work.ids);
}

std::string Tokenizer::spelling(TokenId token, Control control) const {
  const Vocabulary& vocabulary = impl_->vocabulary;
  if (token.value < 0 || token.value >= vocabulary.size()) return {};
  const auto index = static_cast<std::size_t>(token.value);
  const TokenType type = vocabulary.types[index];
  const bool is_control = type == TokenType::kControl || type == TokenType::kUnknown;
  if (is_control && control != Control::kShown) return {};
  if (const auto found = impl_->respelled.find(token.value); found != impl_->respelled.end()) return found->second;
  if (is_control) return vocabulary.pieces[index];
  return impl_->encoder->text_of(token.value);
}

const TextDecoder* Tokenizer::decoder() const {
  return impl_->encoder->decoder();
}

std::string Tokenizer::piece(TokenId token, Control control) const {
  const std::string text = spelling(token, control);
  if (decoder() == nullptr || text.empty()) return text;
  TextDecoder::Run run(*decoder());
  (void)run.push("a");  // what a token adds in the middle of a text
  std::string result = run.push(text);
  return result + run.finish();
}

std::string Tokenizer::decode(const std::vector<TokenId>& tokens, Control control) const {
  std::string text;
  if (decoder() != nullptr) {
    TextDecoder::Run run(*decoder());
    for (TokenId token : tokens) {
      const std::string spelled = spelling(token, control);
      if (!spelled.empty()) text += run.push(spelled);
    }
    return text + run.finish();
  }
  const bool strips = impl_->vocabulary.kind == TokenizerKind::kSentencePiece && impl_->vocabulary.add_space_prefix;
  for (TokenId token : tokens) text += spelling(token, control);
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
