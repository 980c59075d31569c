#include "butterfly/text/template/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/python_text.h"
#include "butterfly/text/utf8.h"

namespace butterfly::chat {

namespace {

constexpr auto kNotFound = std::string_view::npos;
constexpr std::size_t kTokens = 50'000;  // a tree takes some hundred bytes for each

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      BF_TRY(text_and_tag());
    }
    add(Token::Kind::kEnd, at_, at_);
    return std::move(tokens_);
  }

 private:
  Status text_and_tag();
  Status comment(std::size_t begin);
  Result<bool> raw();
  Status inside(std::size_t begin, bool block);
  bool ends(bool block);
  Status token();
  Status string_token();
  Status number_token();
  Status sign_token();
  void add_text(std::size_t begin, std::size_t end, char sign, bool strips_line);
  Result<std::string> unescape(std::size_t begin, std::size_t end) const;

  bool looking_at(std::string_view what) const { return source_.substr(at_).starts_with(what); }
  std::size_t after_space(std::size_t from) const { return from + leading(source_.substr(from), nullptr); }
  void skip_newline() {
    if (looking_at("\n")) ++at_;
  }
  /// '-' or '+' at `at_`, which is passed over; 0: neither.
  char take_sign() {
    if (!looking_at("-") && !looking_at("+")) return 0;
    return source_[at_++];
  }
  Token& add(Token::Kind kind, std::size_t begin, std::size_t end) {
    tokens_.push_back({.kind = kind, .text = std::string(source_.substr(begin, end - begin)), .place = {begin, end}});
    return tokens_.back();
  }
  tl::unexpected<Error> bad(std::size_t place, const std::string& message) const {
    return template_error(ErrorCode::kBadData, source_, place, message);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::string open_;  // brackets
  std::vector<Token> tokens_;
};

/// The text in front of a tag with `sign`. A tag that is alone at the start of its line takes the space before it.
void Lexer::add_text(std::size_t begin, std::size_t end, char sign, bool strips_line) {
  if (sign == '-') {
    end -= trailing(source_.substr(begin, end - begin), nullptr);
  } else if (sign == 0 && strips_line) {
    std::size_t line = end;
    while (line > begin && source_[line - 1] != '\n') --line;
    const bool whole_line = line > 0 ? source_[line - 1] == '\n' : true;
    if (whole_line && after_space(line) >= end) end = line;
  }
  if (end > begin) add(Token::Kind::kText, begin, end);
}

Status Lexer::text_and_tag() {
  const std::size_t begin = at_;
  std::size_t tag = begin;
  while (true) {
    tag = source_.find('{', tag);
    if (tag == kNotFound || tag + 1 >= source_.size()) {
      add_text(begin, source_.size(), '+', false);
      at_ = source_.size();
      return {};
    }
    const char second = source_[tag + 1];
    if (second == '%' || second == '{' || second == '#') break;
    ++tag;
  }
  const char kind = source_[tag + 1];
  at_ = tag + 2;
  const char sign = take_sign();
  add_text(begin, tag, sign, kind != '{');
  if (kind == '#') return comment(tag);
  if (kind == '%') {
    BF_ASSIGN_OR_RETURN(const bool was_raw, raw());
    if (was_raw) return {};
  }
  add(kind == '%' ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, tag, at_);
  return inside(tag, kind == '%');
}

Status Lexer::comment(std::size_t begin) {
  const std::size_t end = source_.find("#}", at_);
  if (end == kNotFound) return bad(begin, "a comment has no end, expected '#}'");
  const char before = end > at_ ? source_[end - 1] : '\0';
  at_ = end + 2;
  if (before == '-') {
    at_ = after_space(at_);
  } else if (before != '+') {
    skip_newline();
  }
  return {};
}

/// At "raw %}": the text up to endraw. False, and nothing is passed over, where another tag begins.
Result<bool> Lexer::raw() {
  const std::size_t tag = at_;
  std::size_t at = after_space(at_);
  if (!source_.substr(at).starts_with("raw")) return false;
  at = after_space(at + 3);
  const bool strips = source_.substr(at).starts_with("-%}");
  if (!strips && !source_.substr(at).starts_with("%}")) return false;
  const std::size_t begin = strips ? after_space(at + 3) : at + 2;
  for (std::size_t end = begin; (end = source_.find("{%", end)) != kNotFound; end += 2) {
    at_ = end + 2;
    const char sign = take_sign();
    at_ = after_space(at_);
    if (!looking_at("endraw")) continue;
    at_ = after_space(at_ + 6);
    const std::size_t mark = at_;
    if (looking_at("-%}")) {
      at_ = after_space(mark + 3);
    } else if (looking_at("+%}")) {
      at_ = mark + 3;
    } else if (looking_at("%}")) {
      at_ = mark + 2;
      skip_newline();
    } else {
      continue;
    }
    add_text(begin, end, sign, true);
    return true;
  }
  return bad(tag, "'raw' has no end, expected 'endraw'");
}

/// The end of a tag, with the white space that it takes. False where there is none here.
bool Lexer::ends(bool block) {
  const std::string_view end = block ? "%}" : "}}";
  if (looking_at(end)) {
    at_ += 2;
    if (block) skip_newline();
    return true;
  }
  if (at_ + 1 >= source_.size() || !source_.substr(at_ + 1).starts_with(end)) return false;
  if (source_[at_] == '-') {
    at_ = after_space(at_ + 3);
    return true;
  }
  if (source_[at_] == '+' && block) {
    at_ += 3;
    return true;
  }
  return false;
}

Status Lexer::inside(std::size_t begin, bool block) {
  open_.clear();
  while (true) {
    at_ = after_space(at_);
    if (at_ >= source_.size()) {
      return bad(begin, block ? "a tag has no end, expected '%}'" : "an expression has no end, expected '}}'");
    }
    const std::size_t end = at_;
    if (open_.empty() && ends(block)) {
      add(block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, end, end + 2);
      return {};
    }
    if (tokens_.size() > kTokens) {
      return template_error(ErrorCode::kUnsupported, source_, at_,
                            fmt::format("the template has more than {} words and signs", kTokens));
    }
    BF_TRY(token());
  }
}

Status Lexer::token() {
  const char c = source_[at_];
  if (c == '\'' || c == '"') return string_token();
  if (is_digit(c)) return number_token();
  if (!begins_name(c)) return sign_token();
  std::size_t end = at_;
  while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
  add(Token::Kind::kName, at_, end);
  at_ = end;
  return {};
}

Status Lexer::string_token() {
  const char quote = source_[at_];
  std::size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) return bad(at_, "a string has no end");
  BF_ASSIGN_OR_RETURN(std::string text, unescape(at_ + 1, end));
  add(Token::Kind::kString, at_, end + 1).text = std::move(text);
  at_ = end + 1;
  return {};
}

Status Lexer::number_token() {
  std::size_t end = at_;
  const auto digits = [&] {
    while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
  };
  digits();
  bool whole = true;
  if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
    whole = false;
    ++end;
    digits();
  }
  if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
    std::size_t exponent = end + 1;
    if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
    if (exponent < source_.size() && is_digit(source_[exponent])) {
      whole = false;
      end = exponent;
      digits();
    }
  }
  Token& token = add(whole ? Token::Kind::kInteger : Token::Kind::kFloat, at_, end);
  std::string plain = token.text;
  std::erase(plain, '_');
  const char* last = plain.data() + plain.size();
  const auto read =
      whole ? std::from_chars(plain.data(), last, token.integer) : std::from_chars(plain.data(), last, token.number);
  if (read.ec != std::errc() || read.ptr != last) return bad(at_, fmt::format("the number {} is too large", plain));
  at_ = end;
  return {};
}

Status Lexer::sign_token() {
  static constexpr std::string_view kSigns[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                                "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
  for (const std::string_view sign : kSigns) {
    if (!looking_at(sign)) continue;
    const char c = sign[0];
    if (c == '(' || c == '[' || c == '{') open_.push_back(c == '(' ? ')' : static_cast<char>(c + 2));
    if (c == ')' || c == ']' || c == '}') {
      if (open_.empty()) return bad(at_, fmt::format("unexpected '{}'", c));
      if (open_.back() != c) return bad(at_, fmt::format("unexpected '{}', expected '{}'", c, open_.back()));
      open_.pop_back();
    }
    add(Token::Kind::kSign, at_, at_ + sign.size());
    at_ += sign.size();
    return {};
  }
  return bad(at_, fmt::format("unexpected character '{}'", one_line(source_.substr(at_, 1))));
}

/// Python's escapes; what is none of them stays as it is.
Result<std::string> Lexer::unescape(std::size_t begin, std::size_t end) const {
  static constexpr std::string_view kPlain = "nrtabfv0\\'\"";
  static constexpr std::string_view kMeaning("\n\r\t\a\b\f\v\0\\'\"", 11);
  std::string text;
  for (std::size_t at = begin; at < end; ++at) {
    if (source_[at] != '\\' || at + 1 >= end) {
      text += source_[at];
      continue;
    }
    const char c = source_[++at];
    const std::size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width > 0) {
      std::uint32_t code = 0;
      const char* first = source_.data() + at + 1;
      const char* last = first + std::min(width, end - at - 1);
      const auto read = std::from_chars(first, last, code, 16);
      if (read.ptr != first + width) return bad(at, fmt::format("the escape \\{} needs {} digits", c, width));
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
        return bad(at, fmt::format("U+{:04X} is no character", code));
      }
      append_utf8(text, static_cast<char32_t>(code));
      at += width;
    } else if (c >= '0' && c <= '7') {
      std::uint32_t code = 0;
      std::size_t digits = 0;
      while (digits < 3 && at + digits < end && source_[at + digits] >= '0' && source_[at + digits] <= '7') {
        code = code * 8 + static_cast<std::uint32_t>(source_[at + digits++] - '0');
      }
      append_utf8(text, static_cast<char32_t>(code));
      at += digits - 1;
    } else if (const std::size_t which = kPlain.find(c); which != kNotFound) {
      text += kMeaning[which];
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
  }
  return text;
}

}  // namespace

tl::unexpected<Error> template_error(ErrorCode code, std::string_view source, std::size_t place,
                                     const std::string& message) {
  const auto end = source.begin() + static_cast<std::ptrdiff_t>(std::min(place, source.size()));
  return make_error(code, "chat template, line {}: {}", std::count(source.begin(), end, '\n') + 1, message);
}

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace butterfly::chat
