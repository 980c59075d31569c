#include "butterfly/text/steps/pattern_dialect.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace butterfly {

namespace {

constexpr const char* kSpaces =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kWords =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

/// What Oniguruma counts as word characters beside these.
constexpr const char* kLatinFractions = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// And what Rust counts.
constexpr const char* kJoiners = R"(\x{200C}\x{200D})";

class DialectRewriter {
 public:
  DialectRewriter(std::string_view expression, PatternDialect dialect)
      : rest_(expression), oniguruma_(dialect == PatternDialect::kOniguruma) {}

  Result<std::string> run() {
    while (!rest_.empty()) BF_TRY(step());
    return std::move(out_);
  }

 private:
  Status step();
  Status character_class();
  void escape();
  void group();
  void interval();
  std::string take(std::size_t count) {
    std::string taken(rest_.substr(0, count));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string words() const { return std::string(kWords) + (oniguruma_ ? kLatinFractions : kJoiners); }
  void atom(const std::string& text) {
    atom_ = out_.size();
    out_ += text;
  }

  std::string_view rest_;
  bool oniguruma_;
  std::string out_;
  std::size_t atom_ = 0;             // where in out_ the thing begins that a quantifier would repeat
  std::vector<std::size_t> groups_;  // where the open groups begin
};

Status DialectRewriter::step() {
  switch (rest_.front()) {
    case '\\':
      escape();
      return {};
    case '[':
      return character_class();
    case '(':
      group();
      return {};
    case ')':
      atom_ = groups_.empty() ? out_.size() : groups_.back();
      if (!groups_.empty()) groups_.pop_back();
      out_ += take(1);
      return {};
    case '{':
      interval();
      return {};
    case '*':
    case '+':
    case '?':
      out_ += take(1);
      return {};
    default: {
      std::size_t size = 1;
      while (size < rest_.size() && (rest_[size] & 0xC0) == 0x80) ++size;
      atom(take(size));
      return {};
    }
  }
}

/// "\p{L}", "\x{1F}" and "\k<name>" are one atom with what stands in the braces.
std::size_t escape_size(std::string_view text) {
  if (text.size() < 3) return text.size();
  const char close = text[2] == '{' ? '}' : text[2] == '<' ? '>' : '\0';
  const bool takes_name = std::string_view("pPxogkNu").find(text[1]) != std::string_view::npos;
  const std::size_t end = takes_name && close != '\0' ? text.find(close, 3) : std::string_view::npos;
  return end == std::string_view::npos ? 2 : end + 1;
}

/// "\p{Han}" names the script of a character; PCRE2 means by that every script that uses the character.
std::string script_named(const std::string& escape) {
  static constexpr std::array<std::string_view, 22> kScripts{
      "Arabic",   "Armenian", "Bengali",   "Cyrillic", "Devanagari", "Georgian", "Greek",    "Gujarati",
      "Gurmukhi", "Han",      "Hangul",    "Hebrew",   "Hiragana",   "Kannada",  "Katakana", "Khmer",
      "Lao",      "Latin",    "Malayalam", "Tamil",    "Telugu",     "Thai"};
  if (escape.size() < 5 || (escape[1] != 'p' && escape[1] != 'P') || escape[2] != '{') return escape;
  const std::string name = escape.substr(3, escape.size() - 4);
  const bool is_script = std::ranges::find(kScripts, name) != kScripts.end();
  return is_script ? escape.substr(0, 3) + "sc:" + name + "}" : escape;
}

void DialectRewriter::escape() {
  const std::size_t size = escape_size(rest_);
  const char kind = rest_.size() > 1 ? rest_[1] : '\0';
  const std::string text = take(size);
  if (kind == 's' || kind == 'S') {
    atom(std::string(kind == 's' ? "[" : "[^") + kSpaces + "]");
  } else if (kind == 'w' || kind == 'W') {
    atom((kind == 'w' ? "[" : "[^") + words() + "]");
  } else if (oniguruma_ && (kind == 'h' || kind == 'H')) {
    atom(kind == 'h' ? "[0-9A-Fa-f]" : "[^0-9A-Fa-f]");
  } else {
    atom(script_named(text));
  }
}

/// "(?m" is Oniguruma's name for what others call "(?s".
void DialectRewriter::group() {
  groups_.push_back(out_.size());
  atom_ = out_.size();
  if (!oniguruma_ || !rest_.starts_with("(?")) {
    out_ += take(1);
    return;
  }
  std::size_t end = 2;
  while (end < rest_.size() && std::string_view("imx-").find(rest_[end]) != std::string_view::npos) ++end;
  const bool flags = end > 2 && end < rest_.size() && (rest_[end] == ':' || rest_[end] == ')');
  std::string text = take(flags ? end : 1);
  if (flags) {
    for (char& c : text) c = c == 'm' ? 's' : c;
  }
  out_ += text;
}

/// "x{1,3}+" is possessive in PCRE2 and Rust; in Oniguruma it repeats the repetition.
void DialectRewriter::interval() {
  std::size_t end = 1;
  while (end < rest_.size() && (rest_[end] == ',' || (rest_[end] >= '0' && rest_[end] <= '9'))) ++end;
  const bool is_interval = end > 1 && end < rest_.size() && rest_[end] == '}';
  if (!is_interval) {
    atom(take(1));
    return;
  }
  std::string text = take(end + 1);
  if (text.starts_with("{,")) text.insert(1, "0");  // PCRE2 would take it for plain characters
  if (oniguruma_ && rest_.starts_with("+")) {
    out_.insert(atom_, "(?:");
    out_ += text + ")";
  } else {
    out_ += text;
  }
}

Status DialectRewriter::character_class() {
  // The items as PCRE2 spells them; after "&&" those of the second class.
  std::string text = take(1);
  if (rest_.starts_with("^")) text += take(1);
  if (rest_.starts_with("]")) text += "\\" + take(1);
  while (!rest_.empty() && rest_.front() != ']') {
    if (rest_.starts_with("[:")) {
      const std::size_t end = rest_.find(":]");
      text += take(end == std::string_view::npos ? 1 : end + 2);
    } else if (rest_.starts_with("&&[")) {
      take(2);
      const std::size_t here = out_.size();
      BF_TRY(character_class());
      const std::string other = out_.substr(here);
      out_.resize(here);
      if (!rest_.starts_with("]") || text.starts_with("[^")) break;
      take(1);
      atom("(?:(?=" + other + ")" + text + "])");
      return {};
    } else if (rest_.front() == '[' || rest_.starts_with("&&")) {
      return make_error(ErrorCode::kUnsupported,
                        "the pre-tokenizer's pattern has a class in a class, only [a&&[b]] is supported");
    } else if (rest_.front() == '\\') {
      const char kind = rest_.size() > 1 ? rest_[1] : '\0';
      const std::string escaped = take(escape_size(rest_));
      if (kind == 's') {
        text += kSpaces;
      } else if (kind == 'w') {
        text += words();
      } else {
        text += script_named(escaped);
      }
    } else {
      text += take(1);
    }
  }
  if (!rest_.starts_with("]")) {
    atom(text);  // not closed: PCRE2 says so and where
    out_ += take(rest_.size());
    return {};
  }
  atom(text + take(1));
  return {};
}

}  // namespace

Result<std::string> to_pcre2(std::string_view expression, PatternDialect dialect) {
  return DialectRewriter(expression, dialect).run();
}

}  // namespace butterfly
