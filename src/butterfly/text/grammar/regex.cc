#include "butterfly/text/grammar/regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "butterfly/base/text/printable.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

constexpr int kGroupsMax = 100;  // within each other
constexpr std::uint32_t kRepeatsMost = 100'000;
constexpr std::size_t kPatternBytesMax = 1 << 16;
constexpr char32_t kEnd = 0xFFFFFFFF;

CodePointSet digits() {
  return {'0', '9'};
}

CodePointSet word_characters() {
  CodePointSet set{'a', 'z'};
  set.add('A', 'Z');
  set.add('0', '9');
  set.add('_', '_');
  return set;
}

CodePointSet ascii_spaces() {
  return CodePointSet::of(" \t\n\r\f\v");
}

CodePointSet line_ends() {
  CodePointSet set = CodePointSet::of("\n\r");
  set.add(0x2028, 0x2029);
  return set;
}

CodePointSet unicode_spaces() {
  CodePointSet set = ascii_spaces();
  set.add(0x1C, 0x1F);
  for (const char32_t c : {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF}) set.add(c, c);
  set.add(0x2000, 0x200A);
  return set;
}

class RegexParser {
 public:
  using Expr = GrammarBuilder::Expr;

  RegexParser(GrammarBuilder& builder, std::string_view pattern, const RegexOptions& options)
      : builder_(builder), pattern_(pattern), options_(options) {}

  Result<Expr> run();

 private:
  char32_t peek() const {
    const std::string_view rest = pattern_.substr(at_);
    return rest.empty() ? kEnd : utf8_step(rest).code_point;
  }
  void skip() { at_ += static_cast<std::size_t>(utf8_step(pattern_.substr(at_)).size); }
  bool take(char32_t c) {
    if (peek() != c) return false;
    skip();
    return true;
  }
  tl::unexpected<Error> refuse(std::string_view what, std::size_t at) const {
    return make_error(ErrorCode::kInvalidArgument, "the regular expression {} has {} at byte {}", printable(pattern_),
                      what, at);
  }
  Expr characters(const CodePointSet& set) {
    return options_.characters ? options_.characters(set) : builder_.characters(set);
  }

  Result<Expr> parse_choice(int depth);
  Result<Expr> parse_branch(int depth);
  Result<Expr> parse_atom(int depth);
  Status parse_group_head();
  Result<Expr> parse_quantifiers(Expr atom);
  Result<std::optional<std::pair<std::uint32_t, std::uint32_t>>> parse_braces();
  Result<CodePointSet> parse_escape(bool in_class);
  Result<CodePointSet> parse_class();
  Result<char32_t> parse_hex(std::size_t least, std::size_t most);
  Result<Expr> anchored(Expr body, bool at_begin, bool at_end);

  GrammarBuilder& builder_;
  std::string_view pattern_;
  const RegexOptions& options_;
  std::size_t at_ = 0;
};

/// Any text before or behind where a search has no anchor.
Result<RegexParser::Expr> RegexParser::anchored(Expr body, bool at_begin, bool at_end) {
  if (!options_.search || (at_begin && at_end)) return body;
  const Expr around = builder_.repeat(characters(options_.any), 0);
  std::vector<Expr> parts;
  if (!at_begin) parts.push_back(around);
  parts.push_back(body);
  if (!at_end) parts.push_back(around);
  return builder_.sequence(std::move(parts));
}

Result<RegexParser::Expr> RegexParser::run() {
  if (pattern_.size() > kPatternBytesMax) {
    return make_error(ErrorCode::kInvalidArgument, "the regular expression has {} bytes, at most {} are possible",
                      pattern_.size(), kPatternBytesMax);
  }
  if (const auto bad = find_invalid_utf8(pattern_)) return refuse("a byte that is not UTF-8", *bad);
  std::vector<Expr> options;
  do {
    const bool at_begin = take('^');
    BF_ASSIGN_OR_RETURN(const Expr body, parse_branch(0));
    const bool at_end = take('$');
    BF_ASSIGN_OR_RETURN(const Expr option, anchored(body, at_begin, at_end));
    options.push_back(option);
  } while (take('|'));
  if (peek() == ')') return refuse("a ')' that closes nothing", at_);
  if (at_ < pattern_.size()) return refuse("an anchor that is not at an end", at_ - 1);
  return builder_.choice(std::move(options));
}

Result<RegexParser::Expr> RegexParser::parse_choice(int depth) {
  if (depth > kGroupsMax) return refuse("too many groups within each other", at_);
  std::vector<Expr> options;
  do {
    BF_ASSIGN_OR_RETURN(const Expr option, parse_branch(depth));
    options.push_back(option);
  } while (take('|'));
  return builder_.choice(std::move(options));
}

/// Ends before '|', ')', '$' and the end.
Result<RegexParser::Expr> RegexParser::parse_branch(int depth) {
  std::vector<Expr> parts;
  while (true) {
    const char32_t c = peek();
    if (c == kEnd || c == '|' || c == ')') break;
    if (c == '$' && depth == 0) break;
    if (c == '^' || c == '$') return refuse("an anchor that is not at an end", at_);
    BF_ASSIGN_OR_RETURN(const Expr atom, parse_atom(depth));
    BF_ASSIGN_OR_RETURN(const Expr repeated, parse_quantifiers(atom));
    parts.push_back(repeated);
  }
  return parts.empty() ? builder_.empty() : builder_.sequence(std::move(parts));
}

/// Behind '(': what kind of group it is.
Status RegexParser::parse_group_head() {
  const std::size_t begin = at_;
  if (!take('?')) return {};
  if (take(':')) return {};
  const bool python = take('P');
  if (take('<')) {
    if (peek() == '=' || peek() == '!') return refuse("look-behind, which is not possible here,", begin - 1);
    while (peek() != kEnd && peek() != '>') skip();
    if (take('>')) return {};
    return refuse("a group's name without an end", begin);
  }
  if (python) return refuse("a back reference, which is not possible here,", begin - 1);
  if (peek() == '=' || peek() == '!') return refuse("look-ahead, which is not possible here,", begin - 1);
  if (peek() == '>') return refuse("an atomic group, which is not possible here,", begin - 1);
  return refuse("an inline flag or a group of an unknown kind", begin - 1);
}

Result<RegexParser::Expr> RegexParser::parse_atom(int depth) {
  const std::size_t begin = at_;
  const char32_t c = peek();
  skip();
  switch (c) {
    case '(': {
      BF_TRY(parse_group_head());
      BF_ASSIGN_OR_RETURN(const Expr group, parse_choice(depth + 1));
      if (!take(')')) return refuse("a '(' without a ')'", begin);
      return group;
    }
    case '[': {
      BF_ASSIGN_OR_RETURN(const CodePointSet set, parse_class());
      if (set.empty()) return refuse("a class that no character is in", begin);
      return characters(set);
    }
    case '.':
      return characters(options_.any.without(line_ends()));
    case '\\': {
      BF_ASSIGN_OR_RETURN(const CodePointSet set, parse_escape(false));
      return characters(set);
    }
    case '*':
    case '+':
    case '?':
      return refuse("a quantifier behind nothing", begin);
    case '{': {
      at_ = begin;
      BF_ASSIGN_OR_RETURN(const auto braces, parse_braces());
      if (braces) return refuse("a quantifier behind nothing", begin);
      at_ = begin + 1;
      return characters({c, c});
    }
    default:
      return characters({c, c});
  }
}

/// {n}, {n,} or {n,m}; nothing where '{' is a character.
Result<std::optional<std::pair<std::uint32_t, std::uint32_t>>> RegexParser::parse_braces() {
  const std::size_t begin = at_;
  using Braces = std::optional<std::pair<std::uint32_t, std::uint32_t>>;
  if (!take('{')) return Braces{};
  const auto number = [&]() -> std::optional<std::uint32_t> {
    std::optional<std::uint32_t> value;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min(kRepeatsMost + 1, value.value_or(0) * 10 + static_cast<std::uint32_t>(peek() - '0'));
      skip();
    }
    return value;
  };
  const auto least = number();
  auto most = least;
  const bool comma = take(',');
  if (comma) most = number();
  if (!least || !take('}')) {
    at_ = begin;
    return Braces{};
  }
  const std::uint32_t end = most.value_or(GrammarBuilder::kUnbounded);
  if (*least > kRepeatsMost || (most && *most > kRepeatsMost)) {
    return refuse("a repetition of more than 100000 times", begin);
  }
  if (end < *least) return refuse("a repetition whose end is below its beginning", begin);
  return Braces{{*least, end}};
}

Result<RegexParser::Expr> RegexParser::parse_quantifiers(Expr atom) {
  const std::size_t begin = at_;
  std::uint32_t least = 0;
  std::uint32_t most = GrammarBuilder::kUnbounded;
  if (take('+')) {
    least = 1;
  } else if (take('?')) {
    most = 1;
  } else if (!take('*')) {
    BF_ASSIGN_OR_RETURN(const auto braces, parse_braces());
    if (!braces) return atom;
    std::tie(least, most) = *braces;
  }
  if (peek() == '+') return refuse("a possessive quantifier, which is not possible here,", begin);
  (void)take('?');
  if (peek() == '*' || peek() == '+' || peek() == '?') return refuse("a quantifier behind a quantifier", at_);
  return builder_.repeat(atom, least, most);
}

Result<char32_t> RegexParser::parse_hex(std::size_t least, std::size_t most) {
  const std::size_t begin = at_;
  char32_t value = 0;
  std::size_t count = 0;
  for (; count < most; ++count) {
    const char32_t c = peek();
    const char32_t lower = c | 0x20;
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      break;
    }
    skip();
  }
  if (count < least) return refuse("an escape with too few hexadecimal digits", begin);
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return refuse("an escape of no character", begin);
  return value;
}

/// Behind a backslash.
Result<CodePointSet> RegexParser::parse_escape(bool in_class) {
  const std::size_t begin = at_ - 1;
  const char32_t c = peek();
  if (c == kEnd) return refuse("a backslash behind which nothing stands", begin);
  skip();
  const auto ascii_but = [](const CodePointSet& set) { return CodePointSet(0, 0x7F).without(set); };
  const auto one = [](char32_t character) { return CodePointSet(character, character); };
  switch (c) {
    case 'd':
      return digits();
    case 'w':
      return word_characters();
    case 's':
      return ascii_spaces();
    case 'D':
      return ascii_but(digits());
    case 'W':
      return ascii_but(word_characters());
    case 'S':
      return options_.any.without(unicode_spaces());
    case 'n':
      return one('\n');
    case 't':
      return one('\t');
    case 'r':
      return one('\r');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case '0':
      return one(0);
    case 'x':
    case 'u': {
      const bool braces = take('{');
      const std::size_t digits_count = c == 'x' ? 2 : 4;
      BF_ASSIGN_OR_RETURN(const char32_t value, parse_hex(braces ? 1 : digits_count, braces ? 6 : digits_count));
      if (braces && !take('}')) return refuse("an escape without a '}'", begin);
      return one(value);
    }
    case 'b':
      if (in_class) return one('\b');
      return refuse("\\b, which is not possible here,", begin);
    case 'B':
      return refuse("\\B, which is not possible here,", begin);
    case 'p':
    case 'P':
      return refuse("\\p, which is not possible here,", begin);
    case 'k':
      return refuse("a back reference, which is not possible here,", begin);
    default:
      break;
  }
  if (c >= '1' && c <= '9') return refuse("a back reference, which is not possible here,", begin);
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return refuse("an escape that is not known", begin);
  return one(c);
}

/// Behind '['.
Result<CodePointSet> RegexParser::parse_class() {
  const std::size_t begin = at_ - 1;
  const bool negated = take('^');
  CodePointSet set;
  bool first = true;
  while (first || peek() != ']') {
    if (peek() == kEnd) return refuse("a '[' without a ']'", begin);
    if (first && peek() == ']') return refuse("a class with nothing in it", begin);
    first = false;
    const auto member = [&]() -> Result<CodePointSet> {
      const char32_t c = peek();
      skip();
      if (c == '\\') return parse_escape(true);
      return CodePointSet(c, c);
    };
    const std::size_t place = at_;
    BF_ASSIGN_OR_RETURN(const CodePointSet low, member());
    const bool single = low.ranges().size() == 1 && low.ranges()[0].first == low.ranges()[0].last;
    if (peek() != '-' || at_ + 1 >= pattern_.size() || pattern_[at_ + 1] == ']') {
      set.add(low);
      continue;
    }
    skip();
    BF_ASSIGN_OR_RETURN(const CodePointSet high, member());
    if (!single || high.ranges().size() != 1 || high.ranges()[0].first != high.ranges()[0].last ||
        high.ranges()[0].first < low.ranges()[0].first) {
      return refuse("a range that goes from nothing to nothing", place);
    }
    set.add(low.ranges()[0].first, high.ranges()[0].first);
  }
  skip();
  return negated ? options_.any.without(set) : set;
}

}  // namespace

Result<GrammarBuilder::Expr> add_regex(GrammarBuilder& builder, std::string_view pattern, const RegexOptions& options) {
  return RegexParser(builder, pattern, options).run();
}

Result<std::shared_ptr<const Grammar>> compile_regex(std::string_view pattern) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule root = builder.add_rule("root");
  BF_ASSIGN_OR_RETURN(const GrammarBuilder::Expr expr, add_regex(builder, pattern));
  builder.set_rule(root, expr);
  return builder.build(root);
}

}  // namespace butterfly
