// What a tokenizer does to a text before and after its model looks tokens up, as plain data: the steps of a
// tokenizer.json and of a SentencePiece model. Filled by the readers of model files, run by Normalizer, PreTokenizer
// and TextDecoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace butterfly {

struct NormalizerStep {
  enum class Kind : std::uint8_t {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStripAccents,   // every combining mark goes
    kStrip,          // white space at the ends: `left`, `right`
    kReplace,        // `pattern` becomes `content`
    kPrepend,        // `content` in front of a text that is not empty
    kAppend,         // `content` behind it
    kPrecompiled,    // `content` is SentencePiece's table of characters, applied as `tokenizers` does: by grapheme
    kBert,           // `clean`, `han`, `strip_accents`, `lowercase`
    kNmt,            // control characters go, odd spaces become spaces
    kByteLevel,      // bytes become the 256 visible characters of byte_alphabet.h
    kSentencePiece,  // `content` as in kPrecompiled but by longest prefix; then `space_prefix`, `space_suffix`,
                     // `collapse_spaces`, `escape_spaces`
  };
  Kind kind = Kind::kNfc;
  std::string pattern{};
  bool is_regex = false;  // kReplace: `pattern` is a regular expression
  std::string content{};
  bool left = false;
  bool right = false;
  bool clean = false;
  bool han = false;
  bool strip_accents = false;
  bool lowercase = false;
  bool space_prefix = false;
  bool space_suffix = false;
  bool collapse_spaces = false;
  bool escape_spaces = false;
};

/// What becomes of the matches of a pattern that splits a text.
enum class SplitBehavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// Where a regular expression comes from says what its anchors mean: Oniguruma's ^ and $ are ends of lines, in the
/// others they are ends of the text.
enum class PatternDialect : std::uint8_t { kOniguruma, kRust };

struct PreTokenizerStep {
  enum class Kind : std::uint8_t {
    kSplit,            // `pattern` (`is_regex`, `dialect`), `behavior`, `invert`
    kSpacePrefix,      // a space in front of each word that has none
    kByteLevel,        // what follows is spelled in the byte alphabet
    kMetaspace,        // spaces become `pattern`; `prepend`; cut in front of each where `cut`
    kWhitespaceSplit,  // white space goes
    kBert,             // white space goes, punctuation stands alone
    kPunctuation,      // `behavior`
    kDigits,           // each alone where `individual`, else in runs
    kUnicodeScripts,   // cut where the script changes
    kFixedLength,      // `length` characters each
  };
  enum class Prepend : std::uint8_t { kNever, kFirst, kAlways };
  Kind kind = Kind::kSplit;
  std::string pattern{};
  bool is_regex = true;
  PatternDialect dialect = PatternDialect::kOniguruma;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  Prepend prepend = Prepend::kNever;
  bool cut = true;
  bool individual = false;
  std::size_t length = 0;
};

struct DecoderStep {
  enum class Kind : std::uint8_t {
    kByteLevel,     // the byte alphabet becomes bytes
    kBpe,           // `pattern`, the suffix of words, becomes a space between them
    kWordPiece,     // spaces between tokens, but in front of `pattern`; `cleanup`
    kMetaspace,     // `pattern` becomes a space; in the first token nothing where `prepend`
    kByteFallback,  // "<0x0A>" becomes a byte
    kFuse,          // what follows sees one token
    kStrip,         // up to `left` times `content` at the start of each token, `right` times at its end
    kReplace,       // `pattern` becomes `content`
    kCtc,           // repeated tokens and `pattern` (padding) go, `content` (between words) becomes a space; `cleanup`
    kJoinSpaces,    // a space between tokens: what a file without a decoder means
  };
  Kind kind = Kind::kFuse;
  std::string pattern{};
  bool is_regex = false;
  std::string content{};
  bool cleanup = false;
  bool prepend = false;
  std::size_t left = 0;
  std::size_t right = 0;
};

}  // namespace butterfly
