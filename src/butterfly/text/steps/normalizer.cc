#include "butterfly/text/steps/normalizer.h"

#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/steps/unicode.h"

namespace butterfly {

namespace {

constexpr std::size_t kNormalisedBytesMax = std::size_t{1} << 30;

/// Calls `visit(character, its bytes)` for each character.
template <typename Visit>
void for_each_character(std::string_view text, const Visit& visit) {
  for (std::size_t i = 0; i < text.size();) {
    const Character c = first_character(text.substr(i));
    visit(c.code_point, text.substr(i, c.size));
    i += c.size;
  }
}

std::string lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view) { append_lower_case(result, c); });
  return result;
}

template <typename Drops>
std::string without(std::string_view text, const Drops& drops) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!drops(c)) result += bytes;
  });
  return result;
}

std::string stripped(const std::string& text, bool left, bool right) {
  std::size_t begin = std::string::npos;  // of the first character that is no space
  std::size_t end = 0;                    // behind the last
  std::size_t place = 0;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!is_unicode_space(c)) {
      begin = std::min(begin, place);
      end = place + bytes.size();
    }
    place += bytes.size();
  });
  if (end == 0) return left || right ? std::string() : text;
  if (!right) end = text.size();
  if (!left) begin = 0;
  return text.substr(begin, end - begin);
}

Result<std::string> replaced(const std::string& text, const NormalizerStep& step, const Pattern* pattern,
                             PatternBudget& budget) {
  std::vector<Range<std::size_t>> matches;
  if (pattern != nullptr) {
    BF_TRY(pattern->find_all(text, budget, matches));
  } else if (!step.pattern.empty()) {
    for (std::size_t at = text.find(step.pattern); at != std::string::npos;
         at = text.find(step.pattern, at + step.pattern.size())) {
      matches.push_back({at, at + step.pattern.size()});
    }
  }
  std::string result;
  std::size_t done = 0;
  for (const auto& match : matches) {
    result.append(text, done, match.begin - done).append(step.content);
    done = match.end;
    if (result.size() > kNormalisedBytesMax) break;
  }
  return result.append(text, done);
}

std::string bert(std::string text, const NormalizerStep& step, Status& status) {
  if (step.clean || step.han) {
    std::string result;
    result.reserve(text.size());
    for_each_character(text, [&](char32_t c, std::string_view bytes) {
      const bool line = c == '\t' || c == '\n' || c == '\r';
      if (step.clean && (c == 0 || c == 0xFFFD || (!line && is_unicode_other(c)))) return;
      if (step.clean && is_unicode_space(c)) {
        result += ' ';
      } else if (step.han && is_bert_han(c)) {
        result.append(" ").append(bytes).append(" ");
      } else {
        result += bytes;
      }
    });
    text = std::move(result);
  }
  if (step.strip_accents) {
    auto decomposed = to_normal_form(text, NormalForm::kNfd);
    if (!decomposed) {
      status = tl::unexpected(decomposed.error());
      return text;
    }
    text = without(*decomposed, is_nonspacing_mark);
  }
  return step.lowercase ? lower_case(text) : text;
}

std::string nmt(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool control =
        (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
    if (control) return;
    const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                       (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                       c == 0xFFFD;
    if (space) {
      result += ' ';
    } else {
      result += bytes;
    }
  });
  return result;
}

/// A grapheme of fewer than six bytes whose beginning is in the table becomes that entry whole; in others each
/// character is looked up alone.
std::string precompiled(std::string_view text, const Charsmap& charsmap) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view grapheme = text.substr(i, first_grapheme(text.substr(i)));
    i += grapheme.size();
    if (grapheme.size() < 6) {
      const Charsmap::Match whole = charsmap.match(grapheme, Charsmap::Which::kShortest);
      if (whole.size > 0) {
        result += whole.replacement;
        continue;
      }
    }
    for_each_character(grapheme, [&](char32_t, std::string_view bytes) {
      const Charsmap::Match one = charsmap.match(bytes, Charsmap::Which::kShortest);
      result += one.size > 0 ? one.replacement : bytes;
    });
  }
  return result;
}

/// SentencePiece's own normalizer, one pass.
class SentencePieceNormalizer {
 public:
  SentencePieceNormalizer(const NormalizerStep& step, const Charsmap& charsmap, const ProtectedTexts* kept)
      : step_(step), charsmap_(charsmap), kept_(kept), space_(step.escape_spaces ? kVisibleSpace : " ") {}

  std::string run(std::string_view text) {
    result_.reserve(text.size() + text.size() / 4 + 3);
    while (step_.collapse_spaces && !text.empty()) {
      const auto [size, replacement] = prefix(text);
      if (replacement != " ") break;
      text.remove_prefix(size);
    }
    if (text.empty()) return {};
    if (step_.space_prefix) result_ += space_;
    bool after_space = step_.collapse_spaces;
    while (!text.empty()) {
      if (const std::size_t settled = settled_bytes(text); settled > 0) {
        result_ += text.substr(0, settled);
        text.remove_prefix(settled);
        after_space = false;
        if (text.empty()) break;
      }
      auto [size, replacement] = prefix(text);
      while (after_space && replacement.starts_with(' ')) replacement.remove_prefix(1);
      if (!replacement.empty()) {
        append(replacement);
        after_space = replacement.ends_with(' ');
      }
      text.remove_prefix(size);
      if (!step_.collapse_spaces) after_space = false;
    }
    while (step_.collapse_spaces && result_.ends_with(space_)) result_.resize(result_.size() - space_.size());
    if (step_.space_suffix) result_ += space_;
    return std::move(result_);
  }

 private:
  /// How many bytes at the front stay as they are, as a look at each character alone and the next byte tells.
  std::size_t settled_bytes(std::string_view text) const {
    if (kept_ != nullptr) return 0;
    std::size_t count = 0;
    while (count < text.size()) {
      if ((text[count] & 0x80) != 0) {
        const Character c = first_character(text.substr(count));
        if (!charsmap_.is_settled(c.code_point)) break;
        count += c.size;
        continue;
      }
      const bool alone = count + 1 == text.size() || (text[count + 1] & 0x80) == 0;
      if (text[count] == ' ' || !alone || !charsmap_.is_settled(text[count])) break;
      ++count;
    }
    return count;
  }

  Charsmap::Match prefix(std::string_view text) const {
    if (const std::size_t size = kept_ == nullptr ? 0 : kept_->match(text); size > 0) {
      return {size, text.substr(0, size)};
    }
    const auto match = charsmap_.match(text, Charsmap::Which::kLongest);
    const bool whole = match.size == text.size() || (match.size < text.size() && (text[match.size] & 0xC0) != 0x80);
    if (match.size > 0 && whole) return match;
    const std::size_t size = first_character(text).size;
    return {size, text.substr(0, size)};
  }

  void append(std::string_view text) {
    for (char c : text) {
      if (c == ' ') {
        result_ += space_;
      } else {
        result_.push_back(c);
      }
    }
  }

  const NormalizerStep& step_;
  const Charsmap& charsmap_;
  const ProtectedTexts* kept_;
  std::string_view space_;
  std::string result_;
};

std::string in_byte_alphabet(std::string_view text) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  for (char byte : text) result += byte_alphabet().spelling[static_cast<unsigned char>(byte)];
  return result;
}

}  // namespace

Result<Normalizer> Normalizer::create(const std::vector<NormalizerStep>& steps) {
  Normalizer result;
  for (const NormalizerStep& options : steps) {
    using Kind = NormalizerStep::Kind;
    Step step{.options = options, .pattern = nullptr, .charsmap = nullptr};
    if (options.kind == Kind::kReplace && options.is_regex) {
      BF_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(options.pattern, PatternSource::kUntrusted));
      step.pattern = std::make_shared<const Pattern>(std::move(pattern));
      ++result.patterns_;
    }
    if (options.kind == Kind::kPrecompiled || options.kind == Kind::kSentencePiece) {
      BF_ASSIGN_OR_RETURN(Charsmap charsmap, Charsmap::create(options.content));
      step.charsmap = std::make_shared<const Charsmap>(std::move(charsmap));
      step.options.content.clear();
    }
    result.steps_.push_back(std::move(step));
  }
  return result;
}

Result<std::string> Normalizer::apply(const Step& step, std::string text, PatternBudget& budget,
                                      const ProtectedTexts* kept) {
  using Kind = NormalizerStep::Kind;
  const NormalizerStep& options = step.options;
  switch (options.kind) {
    case Kind::kNfc:
      return to_normal_form(text, NormalForm::kNfc);
    case Kind::kNfd:
      return to_normal_form(text, NormalForm::kNfd);
    case Kind::kNfkc:
      return to_normal_form(text, NormalForm::kNfkc);
    case Kind::kNfkd:
      return to_normal_form(text, NormalForm::kNfkd);
    case Kind::kLowercase:
      return lower_case(text);
    case Kind::kStripAccents:
      return without(text, is_unicode_mark);
    case Kind::kStrip:
      return stripped(text, options.left, options.right);
    case Kind::kReplace:
      return replaced(text, options, step.pattern.get(), budget);
    case Kind::kPrepend:
      return text.empty() ? text : options.content + text;
    case Kind::kAppend:
      return text.empty() ? text : text + options.content;
    case Kind::kPrecompiled:
      return precompiled(text, *step.charsmap);
    case Kind::kBert: {
      Status status;
      std::string result = bert(std::move(text), options, status);
      BF_TRY(status);
      return result;
    }
    case Kind::kNmt:
      return nmt(text);
    case Kind::kByteLevel:
      return in_byte_alphabet(text);
    case Kind::kSentencePiece:
      return SentencePieceNormalizer(options, *step.charsmap, kept).run(text);
  }
  return text;
}

Result<std::string> Normalizer::run(std::string_view text, PatternBudget& budget, const ProtectedTexts* kept) const {
  std::string result(text);
  for (const Step& step : steps_) {
    BF_ASSIGN_OR_RETURN(result, apply(step, std::move(result), budget, kept));
    if (result.size() > kNormalisedBytesMax) {
      return make_error(ErrorCode::kUnsupported, "normalisation makes {} bytes of {}, at most {} are possible",
                        result.size(), text.size(), kNormalisedBytesMax);
    }
    // A table out of a model file may hold anything.
    const bool checked = step.charsmap == nullptr || (kept == nullptr && step.charsmap->is_text());
    if (const auto offset = checked ? std::nullopt : find_invalid_utf8(result)) {
      return make_error(ErrorCode::kBadData, "normalisation makes invalid UTF-8: byte 0x{:02X} at offset {}",
                        static_cast<unsigned char>(result[*offset]), *offset);
    }
  }
  return result;
}

}  // namespace butterfly
