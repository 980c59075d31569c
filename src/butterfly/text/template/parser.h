// From tokens to a tree: what expressions and statements share. One per template; not thread-safe.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "butterfly/text/template/lexer.h"
#include "butterfly/text/template/syntax.h"

namespace butterfly::chat {

/// The tokens, and where the parser stands in them.
class TokenReader {
 public:
  TokenReader(std::string_view source, std::vector<Token> tokens) : source_(source), tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead(std::size_t steps) const { return tokens_[std::min(at_ + steps, tokens_.size() - 1)]; }
  const Token& take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool take_sign(std::string_view sign) { return now().is_sign(sign) && (take(), true); }
  bool take_name(std::string_view name) { return now().is_name(name) && (take(), true); }
  Status expect_sign(std::string_view sign);
  Status expect(Token::Kind kind, std::string_view what);
  Result<std::string> expect_name();
  /// Where the token before this one ended.
  std::size_t last_end() const { return at_ == 0 ? 0 : tokens_[at_ - 1].place.end; }

  std::size_t position() const { return at_; }
  /// Whether a token from `first` up to here is the variable `name`.
  bool names_since(std::size_t first, std::string_view name) const;

  tl::unexpected<Error> unexpected(std::string_view wanted) const;
  tl::unexpected<Error> bad(std::size_t place, const std::string& message) const {
    return template_error(ErrorCode::kBadData, source_, place, message);
  }
  std::string_view source() const { return source_; }

 private:
  std::string_view source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

/// Expressions, by Jinja's precedence. Nesting is bounded, so that no source exhausts the stack.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& tokens) : tokens_(tokens) {}

  Result<ExpressionPtr> expression();
  /// Without "if": what a loop runs over.
  Result<ExpressionPtr> without_condition();
  /// Also "a, b", which is a tuple; ends before the name `end`.
  Result<ExpressionPtr> maybe_tuple(bool with_condition = true);
  /// "name(arguments)" after '|', of `subject`; then further ones.
  Result<ExpressionPtr> filters(ExpressionPtr subject);
  Result<ExpressionPtr> filter(ExpressionPtr subject);
  Result<ExpressionPtr> unary(bool with_filters = true);

 private:
  using Rule = Result<ExpressionPtr> (ExpressionParser::*)();
  struct BinaryOperator {
    std::string_view sign;
    Operator meaning;
  };

  Result<ExpressionPtr> disjunction();
  Result<ExpressionPtr> conjunction();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concatenation();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> operand() { return unary(); }
  Result<ExpressionPtr> binary(Rule part, std::initializer_list<BinaryOperator> operators);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> string_constant();
  Result<ExpressionPtr> parentheses();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();
  Result<ExpressionPtr> postfix(ExpressionPtr subject);
  Result<ExpressionPtr> attribute(ExpressionPtr subject);
  Result<ExpressionPtr> subscript(ExpressionPtr subject);
  Result<ExpressionPtr> test(ExpressionPtr subject);
  Status arguments(Expression& call);

  ExpressionPtr make(Expression::Kind kind, std::size_t begin) const;
  /// Adds `part`, one level deeper. Errors: kUnsupported beyond the deepest.
  Status add(Expression& whole, ExpressionPtr part) const;
  Result<ExpressionPtr> finish(ExpressionPtr whole) const;

  TokenReader& tokens_;
  int depth_ = 0;
};

}  // namespace butterfly::chat
