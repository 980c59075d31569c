#include "butterfly/text/grammar/gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "butterfly/base/text/printable.h"
#include "butterfly/text/grammar/grammar_builder.h"
#include "butterfly/text/utf8.h"

namespace butterfly {
namespace {

constexpr int kNestingMax = 100;
constexpr std::uint32_t kCountMost = 100'000;
constexpr std::size_t kGbnfBytesMax = 1 << 20;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class GbnfParser {
 public:
  using Expr = GrammarBuilder::Expr;

  explicit GbnfParser(std::string_view text) : text_(text) {}
  Result<std::shared_ptr<const Grammar>> run();

 private:
  enum class Lines : std::uint8_t { kOne, kMany };

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  /// Blanks and comments; line ends too where a rule goes on behind them.
  void skip_blanks(Lines lines);
  bool next_line_goes_on();
  tl::unexpected<Error> refuse(std::string_view what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    return make_error(ErrorCode::kInvalidArgument, "the grammar has {} in line {}", what, line);
  }
  GrammarBuilder::Rule rule_of(std::string_view name);
  std::string_view parse_name();

  Status parse_rule();
  Result<Expr> parse_alternatives(int depth);
  Result<Expr> parse_sequence(int depth);
  Result<Expr> parse_item(int depth);
  Result<Expr> parse_literal();
  Result<Expr> parse_class();
  Result<char32_t> parse_character();
  Result<Expr> parse_repetition(Expr item);
  std::optional<std::uint32_t> parse_number();

  std::string_view text_;
  std::size_t at_ = 0;
  GrammarBuilder builder_;
  std::map<std::string, GrammarBuilder::Rule, std::less<>> rules_;
};

void GbnfParser::skip_blanks(Lines lines) {
  while (!at_end()) {
    const char c = peek();
    if (c == '#') {
      while (!at_end() && peek() != '\n' && peek() != '\r') ++at_;
    } else if (c == ' ' || c == '\t' || ((c == '\n' || c == '\r') && lines == Lines::kMany)) {
      ++at_;
    } else {
      break;
    }
  }
}

/// A line that begins with '|' belongs to the rule before it.
bool GbnfParser::next_line_goes_on() {
  const std::size_t here = at_;
  skip_blanks(Lines::kMany);
  if (peek() == '|') return true;
  at_ = here;
  return false;
}

GrammarBuilder::Rule GbnfParser::rule_of(std::string_view name) {
  const auto found = rules_.find(name);
  if (found != rules_.end()) return found->second;
  const GrammarBuilder::Rule rule = builder_.add_rule(std::string(name));
  rules_.emplace(name, rule);
  return rule;
}

std::string_view GbnfParser::parse_name() {
  const std::size_t begin = at_;
  while (!at_end() && is_name(peek())) ++at_;
  return text_.substr(begin, at_ - begin);
}

std::optional<std::uint32_t> GbnfParser::parse_number() {
  std::optional<std::uint32_t> value;
  while (peek() >= '0' && peek() <= '9') {
    value = std::min(kCountMost + 1, value.value_or(0) * 10 + static_cast<std::uint32_t>(peek() - '0'));
    ++at_;
  }
  return value;
}

Result<char32_t> GbnfParser::parse_character() {
  const Utf8Step step = utf8_step(text_.substr(at_));
  at_ += static_cast<std::size_t>(step.size);
  if (step.code_point != '\\') return step.code_point;
  if (at_end()) return refuse("a backslash at the end");
  const char c = text_[at_++];
  std::size_t digits = 0;
  switch (c) {
    case 'n':
      return U'\n';
    case 't':
      return U'\t';
    case 'r':
      return U'\r';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
      return static_cast<char32_t>(c);
    case 'x':
      digits = 2;
      break;
    case 'u':
      digits = 4;
      break;
    case 'U':
      digits = 8;
      break;
    default:
      return refuse("an escape that is not known");
  }
  char32_t value = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    const char digit = peek();
    const char lower = static_cast<char>(digit | 0x20);
    const bool hex = (digit >= '0' && digit <= '9') || (lower >= 'a' && lower <= 'f');
    if (!hex) return refuse("an escape with too few hexadecimal digits");
    value = value * 16 + static_cast<char32_t>(digit <= '9' ? digit - '0' : lower - 'a' + 10);
    ++at_;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return refuse("an escape of no character");
  return value;
}

/// Behind the quotation mark.
Result<GbnfParser::Expr> GbnfParser::parse_literal() {
  std::string literal;
  while (peek() != '"') {
    if (at_end() || peek() == '\n') return refuse("a literal without its second quotation mark");
    BF_ASSIGN_OR_RETURN(const char32_t c, parse_character());
    append_utf8(literal, c);
  }
  ++at_;
  return builder_.bytes(literal);
}

/// Behind '['.
Result<GbnfParser::Expr> GbnfParser::parse_class() {
  const bool negated = take('^');
  CodePointSet set;
  while (peek() != ']') {
    if (at_end() || peek() == '\n') return refuse("a '[' without a ']'");
    BF_ASSIGN_OR_RETURN(const char32_t first, parse_character());
    char32_t last = first;
    if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
      ++at_;
      BF_ASSIGN_OR_RETURN(last, parse_character());
      if (last < first) return refuse("a range that ends before it begins");
    }
    set.add(first, last);
  }
  ++at_;
  if (negated) set = set.complement();
  if (set.empty()) return refuse("a class that no character is in");
  return builder_.characters(set);
}

Result<GbnfParser::Expr> GbnfParser::parse_item(int depth) {
  if (take('"')) return parse_literal();
  if (take('[')) return parse_class();
  if (take('.')) return builder_.characters(CodePointSet::all());
  if (take('(')) {
    skip_blanks(Lines::kMany);
    BF_ASSIGN_OR_RETURN(const Expr group, parse_alternatives(depth + 1));
    skip_blanks(Lines::kMany);
    if (!take(')')) return refuse("a '(' without a ')'");
    return group;
  }
  if (peek() == '<' || peek() == '!') return refuse("a reference to a token, which is not possible here,");
  const std::string_view name = parse_name();
  if (name.empty()) return refuse(fmt::format("something unexpected, {},", printable(text_.substr(at_, 1))));
  return builder_.call(rule_of(name));
}

Result<GbnfParser::Expr> GbnfParser::parse_repetition(Expr item) {
  if (take('*')) return builder_.repeat(item, 0);
  if (take('+')) return builder_.repeat(item, 1);
  if (take('?')) return builder_.optional(item);
  if (!take('{')) return item;
  skip_blanks(Lines::kMany);
  const auto least = parse_number();
  skip_blanks(Lines::kMany);
  auto most = least;
  if (take(',')) {
    skip_blanks(Lines::kMany);
    most = parse_number();
    skip_blanks(Lines::kMany);
  }
  if (!least || !take('}')) return refuse("a repetition that is none of {n}, {n,} and {n,m}");
  if (*least > kCountMost || most.value_or(0) > kCountMost) return refuse("a repetition of more than 100000 times");
  if (most && *most < *least) return refuse("a repetition whose end is below its beginning");
  return builder_.repeat(item, *least, most.value_or(GrammarBuilder::kUnbounded));
}

Result<GbnfParser::Expr> GbnfParser::parse_sequence(int depth) {
  std::vector<Expr> parts;
  const Lines lines = depth > 0 ? Lines::kMany : Lines::kOne;
  while (true) {
    skip_blanks(lines);
    const char c = peek();
    if (at_end() || c == '|' || c == ')' || c == '\n' || c == '\r') break;
    BF_ASSIGN_OR_RETURN(Expr item, parse_item(depth));
    skip_blanks(lines);
    while (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      BF_ASSIGN_OR_RETURN(item, parse_repetition(item));
      skip_blanks(lines);
    }
    parts.push_back(item);
  }
  return parts.empty() ? builder_.empty() : builder_.sequence(std::move(parts));
}

Result<GbnfParser::Expr> GbnfParser::parse_alternatives(int depth) {
  if (depth > kNestingMax) return refuse("too many groups within each other");
  std::vector<Expr> options;
  while (true) {
    BF_ASSIGN_OR_RETURN(const Expr option, parse_sequence(depth));
    options.push_back(option);
    if (depth == 0 && !next_line_goes_on()) break;
    if (!take('|')) break;
    skip_blanks(Lines::kMany);
  }
  return builder_.choice(std::move(options));
}

Status GbnfParser::parse_rule() {
  const std::string name(parse_name());
  if (name.empty()) return refuse("no rule, name ::= ..., where one should begin,");
  skip_blanks(Lines::kOne);
  if (!text_.substr(at_).starts_with("::=")) return refuse("a rule without ::=");
  at_ += 3;
  skip_blanks(Lines::kMany);
  const GrammarBuilder::Rule rule = rule_of(name);
  if (builder_.is_set(rule)) return refuse(fmt::format("the rule {} for the second time", name));
  BF_ASSIGN_OR_RETURN(const Expr expr, parse_alternatives(0));
  builder_.set_rule(rule, expr);
  if (!at_end() && peek() != '\n' && peek() != '\r') return refuse("a ')' that closes nothing");
  return {};
}

Result<std::shared_ptr<const Grammar>> GbnfParser::run() {
  if (text_.size() > kGbnfBytesMax) {
    return make_error(ErrorCode::kInvalidArgument, "the grammar has {} bytes, at most {} are possible", text_.size(),
                      kGbnfBytesMax);
  }
  if (const auto bad = find_invalid_utf8(text_)) {
    at_ = *bad;
    return refuse("a byte that is not UTF-8");
  }
  skip_blanks(Lines::kMany);
  while (!at_end()) {
    BF_TRY(parse_rule());
    skip_blanks(Lines::kMany);
  }
  const auto root = rules_.find("root");
  if (root == rules_.end()) return make_error(ErrorCode::kInvalidArgument, "the grammar has no rule named root");
  return builder_.build(root->second);
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_gbnf(std::string_view text) {
  return GbnfParser(text).run();
}

}  // namespace butterfly
