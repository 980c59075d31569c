#include "butterfly/text/steps/pre_tokenizer.h"

#include <algorithm>

#include "butterfly/text/steps/byte_alphabet.h"
#include "butterfly/text/steps/published_patterns.h"
#include "butterfly/text/steps/unicode.h"

namespace butterfly {

namespace {

using SplitKind = PreTokenizerStep::Kind;
using Ranges = std::vector<Range<std::size_t>>;

struct Piece {
  Range<std::size_t> range;
  bool is_match = false;
};

/// Matches and what lies between them.
void pieces_of(const Ranges& matches, std::size_t size, bool invert, std::vector<Piece>& pieces) {
  pieces.clear();
  std::size_t done = 0;
  for (const auto& match : matches) {
    if (match.begin > done) pieces.push_back({{done, match.begin}, invert});
    pieces.push_back({match, !invert});
    done = match.end;
  }
  if (done < size) pieces.push_back({{done, size}, invert});
}

/// What is left of `pieces` as words.
void join_pieces(std::vector<Piece>& pieces, SplitBehavior behavior, Ranges& kept) {
  kept.clear();
  bool previous = false;  // whether the piece before was a match
  if (behavior == SplitBehavior::kMergedWithNext) std::ranges::reverse(pieces);
  for (const Piece& piece : pieces) {
    switch (behavior) {
      case SplitBehavior::kRemoved:
        if (!piece.is_match) kept.push_back(piece.range);
        break;
      case SplitBehavior::kIsolated:
        kept.push_back(piece.range);
        break;
      case SplitBehavior::kContiguous:
        if (piece.is_match == previous && !kept.empty()) {
          kept.back().end = piece.range.end;
        } else {
          kept.push_back(piece.range);
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
      case SplitBehavior::kMergedWithNext:
        if (!piece.is_match || previous || kept.empty()) {
          kept.push_back(piece.range);
        } else {
          kept.back() = {std::min(kept.back().begin, piece.range.begin), std::max(kept.back().end, piece.range.end)};
        }
        break;
    }
    previous = piece.is_match;
  }
  if (behavior == SplitBehavior::kMergedWithNext) std::ranges::reverse(kept);
}

/// Each character for which `matches` holds is a match of its own.
template <typename Matches>
void find_characters(std::string_view text, const Matches& matches, Ranges& found) {
  for (std::size_t i = 0; i < text.size();) {
    const Character c = first_character(text.substr(i));
    if (matches(c.code_point)) found.push_back({i, i + c.size});
    i += c.size;
  }
}

void find_literal(std::string_view text, std::string_view literal, Ranges& found) {
  if (literal.empty()) return;
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    found.push_back({at, at + literal.size()});
  }
}

/// Runs of numbers, and in them groups of `size` counted from the end of the run.
void find_digit_groups(std::string_view text, std::size_t size, Ranges& found) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i <= text.size();) {
    const Character c = i < text.size() ? first_character(text.substr(i)) : Character{0, 1};
    if (i < text.size() && is_unicode_number(c.code_point)) {
      starts.push_back(i);
    } else if (!starts.empty()) {
      std::size_t first = 0;
      while (first < starts.size()) {
        const std::size_t left = starts.size() - first;
        const std::size_t count = left % size == 0 ? size : left % size;
        found.push_back({starts[first], first + count < starts.size() ? starts[first + count] : i});
        first += count;
      }
      starts.clear();
    }
    i += c.size;
  }
}

void find_fixed_length(std::string_view text, std::size_t length, Ranges& found) {
  std::size_t begin = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size();) {
    i += first_character(text.substr(i)).size;
    if (++count == length || i == text.size()) {
      found.push_back({begin, i});
      begin = i;
      count = 0;
    }
  }
}

std::string in_alphabet(std::string_view text) {
  std::string result;
  result.reserve(text.size() * 2);
  for (char byte : text) result += byte_alphabet().spelling[static_cast<unsigned char>(byte)];
  return result;
}

/// `spell(word)` is what becomes of it; nothing where it stays.
template <typename Spell>
void respell(Words& words, const Spell& spell) {
  for (Words::Word& word : words.words) {
    std::string text = spell(word);
    if (text.empty()) continue;
    words.texts.push_back(std::move(text));
    word.text = words.texts.back();
  }
}

/// `text` with spaces as `space`, and with one in front where the step wants it and there is none.
std::string with_visible_spaces(const Words::Word& word, const PreTokenizerStep& options) {
  std::string result;
  result.reserve(word.text.size() + word.text.size() / 2);
  for (char c : word.text) {
    if (c == ' ') {
      result += options.pattern;
    } else {
      result.push_back(c);
    }
  }
  using Prepend = PreTokenizerStep::Prepend;
  const bool wanted = options.prepend == Prepend::kAlways || (options.prepend == Prepend::kFirst && word.at_start);
  if (wanted && !result.starts_with(options.pattern)) result.insert(0, options.pattern);
  return result;
}

// Common, Han, Hiragana and Katakana are not among them.
constexpr std::string_view kScripts =
    "Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali "
    "Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian "
    "Chakma Cham Cherokee Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Duployan "
    "Egyptian_Hieroglyphs Elbasan Ethiopic Georgian Glagolitic Gothic Grantha Greek Gujarati Gurmukhi "
    "Hangul Hanunoo Hatran Hebrew Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian "
    "Javanese Kaithi Kannada Kayah_Li Kharoshthi Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A "
    "Linear_B Lisu Lycian Lydian Mahajani Malayalam Mandaic Manichaean Marchen Meetei_Mayek Mende_Kikakui "
    "Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar Nabataean New_Tai_Lue "
    "Newa Nko Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian "
    "Old_South_Arabian Old_Turkic Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa "
    "Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting "
    "Sinhala Sora_Sompeng Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri "
    "Tamil Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Ugaritic Vai Warang_Citi Yi";

/// Characters of one script, Hiragana and Katakana counting as Han; spaces and what is not assigned belong to whatever
/// stands before them. What stands before the first script is dropped, as `tokenizers` does.
std::string scripts_pattern() {
  const std::string any = R"( \p{sc:Unknown})";
  // Common first: most texts have most changes there.
  std::string pattern = R"((?:(?![ \x{30FC}])[\p{sc:Common}])(?:(?!\x{30FC})[\p{sc:Common})" + any + "])*";
  const std::string han = R"(\p{sc:Han}\p{sc:Hiragana}\p{sc:Katakana}\x{30FC})";
  pattern += "|[" + han + "][" + han + any + "]*";
  for (std::string_view rest = kScripts; !rest.empty();) {
    const std::size_t size = std::min(rest.find(' '), rest.size());
    const std::string name = R"(\p{sc:)" + std::string(rest.substr(0, size)) + "}";
    pattern += "|" + name + "[" + name + any + "]*";
    rest.remove_prefix(std::min(size + 1, rest.size()));
  }
  return pattern;
}

Status find_matches(const PreTokenizerStep& options, const Pattern* pattern, std::string_view text,
                    PatternBudget& budget, Ranges& found) {
  found.clear();
  switch (options.kind) {
    case SplitKind::kSplit:
    case SplitKind::kUnicodeScripts:
      if (pattern != nullptr) return pattern->find_all(text, budget, found);
      find_literal(text, options.pattern, found);
      return {};
    case SplitKind::kMetaspace:
      find_literal(text, options.pattern, found);
      return {};
    case SplitKind::kWhitespaceSplit:
      find_characters(text, is_unicode_space, found);
      return {};
    case SplitKind::kBert:
      find_characters(text, is_unicode_space, found);
      return {};
    case SplitKind::kPunctuation:
      find_characters(text, is_punctuation_or_ascii_symbol, found);
      return {};
    case SplitKind::kDigits:
      if (options.length > 0) {
        find_digit_groups(text, options.length, found);
      } else {
        find_characters(text, is_unicode_number, found);
      }
      return {};
    case SplitKind::kFixedLength:
      find_fixed_length(text, options.length, found);
      return {};
    case SplitKind::kSpacePrefix:
    case SplitKind::kByteLevel:
      return {};
  }
  return {};
}

SplitBehavior behavior_of(const PreTokenizerStep& options) {
  switch (options.kind) {
    case SplitKind::kMetaspace:
      return SplitBehavior::kMergedWithNext;
    case SplitKind::kWhitespaceSplit:
    case SplitKind::kBert:
      return SplitBehavior::kRemoved;
    case SplitKind::kUnicodeScripts:
      return SplitBehavior::kRemoved;
    case SplitKind::kDigits:
      return options.individual || options.length > 0 ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    case SplitKind::kFixedLength:
      return SplitBehavior::kIsolated;
    default:
      return options.behavior;
  }
}

/// Each literal begins a word. What most vocabularies of SentencePiece ask for, without lists of pieces.
void cut_before(std::string_view literal, Words& words) {
  std::vector<Words::Word> finer;
  finer.reserve(words.words.size() == 1 ? words.words.front().text.size() / 8 : words.words.size());
  for (const Words::Word& word : words.words) {
    std::size_t begin = 0;
    for (std::size_t at = word.text.find(literal); at != std::string_view::npos;
         at = word.text.find(literal, at + literal.size())) {
      if (at > begin) finer.push_back({word.text.substr(begin, at - begin), word.at_start && begin == 0});
      begin = at;
    }
    if (begin < word.text.size()) finer.push_back({word.text.substr(begin), word.at_start && begin == 0});
  }
  words.words = std::move(finer);
}

}  // namespace

Result<WordCutter> WordCutter::create(const std::vector<PreTokenizerStep>& steps, Spelling spelling) {
  WordCutter result;
  result.spelling_ = spelling;
  for (PreTokenizerStep options : steps) {
    if (options.kind == SplitKind::kSplit && options.is_regex && options.pattern == kDigitGroupsPattern &&
        options.behavior == SplitBehavior::kIsolated) {
      options.kind = SplitKind::kDigits;
      options.length = 3;
    }
    if (options.kind == SplitKind::kFixedLength && options.length == 0) {
      return make_error(ErrorCode::kUnsupported, "the pre-tokenizer cuts words of 0 characters");
    }
    Step step{.options = options, .pattern = nullptr};
    std::string expression;
    if (options.kind == SplitKind::kSplit && options.is_regex) expression = options.pattern;
    if (options.kind == SplitKind::kUnicodeScripts) expression = scripts_pattern();
    if (!expression.empty()) {
      const std::string_view linear = linear_pattern(expression);
      const bool ours = !linear.empty() || options.kind == SplitKind::kUnicodeScripts;
      const PatternSource source = ours ? PatternSource::kBuiltIn : PatternSource::kUntrusted;
      if (!linear.empty()) expression = linear;
      BF_ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(expression, source, options.dialect));
      step.pattern = std::make_shared<const Pattern>(std::move(pattern));
      ++result.patterns_;
    }
    result.steps_.push_back(std::move(step));
    if (options.kind == SplitKind::kBert) {
      result.steps_.push_back({.options = {.kind = SplitKind::kPunctuation}, .pattern = nullptr});
    }
  }
  constexpr std::size_t kPatternsMax = 16;
  if (result.patterns_ > kPatternsMax) {
    return make_error(ErrorCode::kUnsupported, "the pre-tokenizer has {} patterns, at most {} are supported",
                      result.patterns_, kPatternsMax);
  }
  return result;
}

Status WordCutter::run(PatternBudget& budget, Words& words) const {
  for (const Step& step : steps_) BF_TRY(apply(step, budget, words));
  return {};
}

Status WordCutter::apply(const Step& step, PatternBudget& budget, Words& words) const {
  const PreTokenizerStep& options = step.options;
  switch (options.kind) {
    case SplitKind::kSpacePrefix:
      respell(words, [](const Words::Word& word) {
        return word.text.starts_with(' ') ? std::string() : ' ' + std::string(word.text);
      });
      return {};
    case SplitKind::kByteLevel:
      if (spelling_ == Spelling::kBytes) return {};
      respell(words, [](const Words::Word& word) { return in_alphabet(word.text); });
      return {};
    case SplitKind::kMetaspace:
      respell(words, [&](const Words::Word& word) { return with_visible_spaces(word, options); });
      return options.cut ? split(step, budget, words) : Status{};
    default:
      return split(step, budget, words);
  }
}

Status WordCutter::split(const Step& step, PatternBudget& budget, Words& words) {
  const PreTokenizerStep& options = step.options;
  const SplitBehavior behavior = behavior_of(options);
  const bool removes_rest = options.kind == SplitKind::kUnicodeScripts;
  const bool literal =
      options.kind == SplitKind::kMetaspace || (options.kind == SplitKind::kSplit && step.pattern == nullptr);
  if (literal && behavior == SplitBehavior::kMergedWithNext && !options.invert && !options.pattern.empty()) {
    cut_before(options.pattern, words);
    return {};
  }
  std::vector<Words::Word> finer;
  Ranges found;
  Ranges kept;
  std::vector<Piece> pieces;
  for (const Words::Word& word : words.words) {
    BF_TRY(find_matches(options, step.pattern.get(), word.text, budget, found));
    pieces_of(found, word.text.size(), options.invert || removes_rest, pieces);
    join_pieces(pieces, behavior, kept);
    for (const auto& range : kept) {
      if (range.size() == 0) continue;
      finer.push_back({word.text.substr(range.begin, range.size()), word.at_start && range.begin == 0});
    }
  }
  words.words = std::move(finer);
  return {};
}

}  // namespace butterfly
