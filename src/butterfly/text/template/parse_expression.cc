#include "butterfly/text/template/parser.h"

#include "butterfly/base/text/one_line.h"

namespace butterfly::chat {

namespace {

constexpr int kExpressionDepth = 120;  // of parentheses and brackets; of operators in a row

std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kBlockEnd:
      return "the end of the tag";
    case Token::Kind::kOutputEnd:
      return "the end of the expression";
    case Token::Kind::kEnd:
      return "the end of the template";
    case Token::Kind::kText:
      return "text";
    case Token::Kind::kBlockBegin:
      return "'{%'";
    case Token::Kind::kOutputBegin:
      return "'{{'";
    default:
      return fmt::format("'{}'", one_line(token.text));
  }
}

struct DepthGuard {
  explicit DepthGuard(int& depth) : depth_(++depth) {}
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  int& depth_;
};

}  // namespace

bool TokenReader::names_since(std::size_t first, std::string_view name) const {
  for (std::size_t i = first; i < at_; ++i) {
    if (tokens_[i].is_name(name) && (i == 0 || !tokens_[i - 1].is_sign("."))) return true;
  }
  return false;
}

tl::unexpected<Error> TokenReader::unexpected(std::string_view wanted) const {
  return bad(now().place.begin, fmt::format("expected {}, found {}", wanted, describe(now())));
}

Status TokenReader::expect_sign(std::string_view sign) {
  if (take_sign(sign)) return {};
  return unexpected(fmt::format("'{}'", sign));
}

Status TokenReader::expect(Token::Kind kind, std::string_view what) {
  if (now().kind != kind) return unexpected(what);
  take();
  return {};
}

Result<std::string> TokenReader::expect_name() {
  if (now().kind != Token::Kind::kName) return unexpected("a name");
  return take().text;
}

ExpressionPtr ExpressionParser::make(Expression::Kind kind, std::size_t begin) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->place = {begin, tokens_.last_end()};
  return made;
}

Status ExpressionParser::add(Expression& whole, ExpressionPtr part) const {
  if (part) whole.depth = std::max(whole.depth, part->depth + 1);
  if (whole.depth > kExpressionDepth) {
    return template_error(ErrorCode::kUnsupported, tokens_.source(), whole.place.begin,
                          fmt::format("an expression is nested more than {} deep", kExpressionDepth));
  }
  whole.parts.push_back(std::move(part));
  whole.place.end = std::max(whole.place.end, tokens_.last_end());
  return {};
}

Result<ExpressionPtr> ExpressionParser::finish(ExpressionPtr whole) const {
  whole->place.end = tokens_.last_end();
  return whole;
}

Result<ExpressionPtr> ExpressionParser::expression() {
  const DepthGuard guard(depth_);
  if (depth_ > kExpressionDepth) {
    return template_error(ErrorCode::kUnsupported, tokens_.source(), tokens_.now().place.begin,
                          fmt::format("expressions are nested more than {} deep", kExpressionDepth));
  }
  BF_ASSIGN_OR_RETURN(ExpressionPtr value, disjunction());
  while (tokens_.take_name("if")) {
    ExpressionPtr whole = make(Expression::Kind::kConditional, value->place.begin);
    BF_ASSIGN_OR_RETURN(ExpressionPtr condition, disjunction());
    BF_TRY(add(*whole, std::move(condition)));
    BF_TRY(add(*whole, std::move(value)));
    ExpressionPtr otherwise;
    if (tokens_.take_name("else")) {
      BF_ASSIGN_OR_RETURN(otherwise, expression());
    }
    BF_TRY(add(*whole, std::move(otherwise)));
    value = std::move(whole);
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::without_condition() {
  return disjunction();
}

Result<ExpressionPtr> ExpressionParser::maybe_tuple(bool with_condition) {
  const std::size_t begin = tokens_.now().place.begin;
  const auto part = [&] { return with_condition ? expression() : without_condition(); };
  BF_ASSIGN_OR_RETURN(ExpressionPtr first, part());
  if (!tokens_.now().is_sign(",")) return first;
  ExpressionPtr tuple = make(Expression::Kind::kTuple, begin);
  BF_TRY(add(*tuple, std::move(first)));
  while (tokens_.take_sign(",")) {
    const Token& next = tokens_.now();
    if (next.kind == Token::Kind::kBlockEnd || next.kind == Token::Kind::kOutputEnd || next.is_sign(")")) break;
    BF_ASSIGN_OR_RETURN(ExpressionPtr further, part());
    BF_TRY(add(*tuple, std::move(further)));
  }
  return tuple;
}

Result<ExpressionPtr> ExpressionParser::binary(Rule part, std::initializer_list<BinaryOperator> operators) {
  BF_ASSIGN_OR_RETURN(ExpressionPtr left, (this->*part)());
  while (true) {
    const BinaryOperator* found = nullptr;
    for (const BinaryOperator& candidate : operators) {
      if (tokens_.now().is_sign(candidate.sign)) found = &candidate;
    }
    if (found == nullptr) return left;
    tokens_.take();
    ExpressionPtr whole = make(Expression::Kind::kBinary, left->place.begin);
    whole->operators.push_back(found->meaning);
    BF_ASSIGN_OR_RETURN(ExpressionPtr right, (this->*part)());
    BF_TRY(add(*whole, std::move(left)));
    BF_TRY(add(*whole, std::move(right)));
    left = std::move(whole);
  }
}

Result<ExpressionPtr> ExpressionParser::disjunction() {
  BF_ASSIGN_OR_RETURN(ExpressionPtr left, conjunction());
  while (tokens_.take_name("or")) {
    ExpressionPtr whole = make(Expression::Kind::kOr, left->place.begin);
    BF_ASSIGN_OR_RETURN(ExpressionPtr right, conjunction());
    BF_TRY(add(*whole, std::move(left)));
    BF_TRY(add(*whole, std::move(right)));
    left = std::move(whole);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::conjunction() {
  BF_ASSIGN_OR_RETURN(ExpressionPtr left, negation());
  while (tokens_.take_name("and")) {
    ExpressionPtr whole = make(Expression::Kind::kAnd, left->place.begin);
    BF_ASSIGN_OR_RETURN(ExpressionPtr right, negation());
    BF_TRY(add(*whole, std::move(left)));
    BF_TRY(add(*whole, std::move(right)));
    left = std::move(whole);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::negation() {
  std::vector<std::size_t> places;
  for (std::size_t begin = tokens_.now().place.begin; tokens_.take_name("not");) {
    places.push_back(begin);
    begin = tokens_.now().place.begin;
  }
  BF_ASSIGN_OR_RETURN(ExpressionPtr value, comparison());
  for (; !places.empty(); places.pop_back()) {
    ExpressionPtr whole = make(Expression::Kind::kNot, places.back());
    BF_TRY(add(*whole, std::move(value)));
    value = std::move(whole);
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::comparison() {
  static constexpr BinaryOperator kComparisons[] = {{"==", Operator::kEqual},     {"!=", Operator::kNotEqual},
                                                    {"<=", Operator::kLessEqual}, {">=", Operator::kGreaterEqual},
                                                    {"<", Operator::kLess},       {">", Operator::kGreater}};
  BF_ASSIGN_OR_RETURN(ExpressionPtr first, sum());
  ExpressionPtr whole;
  while (true) {
    std::optional<Operator> meaning;
    for (const BinaryOperator& candidate : kComparisons) {
      if (tokens_.now().is_sign(candidate.sign)) meaning = candidate.meaning;
    }
    if (tokens_.now().is_name("in")) meaning = Operator::kIn;
    if (tokens_.now().is_name("not") && tokens_.ahead(1).is_name("in")) {
      meaning = Operator::kNotIn;
      tokens_.take();
    }
    if (!meaning) break;
    tokens_.take();
    if (!whole) {
      whole = make(Expression::Kind::kCompare, first->place.begin);
      BF_TRY(add(*whole, std::move(first)));
    }
    whole->operators.push_back(*meaning);
    BF_ASSIGN_OR_RETURN(ExpressionPtr right, sum());
    BF_TRY(add(*whole, std::move(right)));
  }
  if (whole) return whole;
  return first;
}

Result<ExpressionPtr> ExpressionParser::sum() {
  return binary(&ExpressionParser::concatenation, {{"+", Operator::kAdd}, {"-", Operator::kSubtract}});
}

Result<ExpressionPtr> ExpressionParser::concatenation() {
  BF_ASSIGN_OR_RETURN(ExpressionPtr first, product());
  if (!tokens_.now().is_sign("~")) return first;
  ExpressionPtr whole = make(Expression::Kind::kConcat, first->place.begin);
  BF_TRY(add(*whole, std::move(first)));
  while (tokens_.take_sign("~")) {
    BF_ASSIGN_OR_RETURN(ExpressionPtr further, product());
    BF_TRY(add(*whole, std::move(further)));
  }
  return whole;
}

Result<ExpressionPtr> ExpressionParser::product() {
  return binary(
      &ExpressionParser::power,
      {{"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}});
}

Result<ExpressionPtr> ExpressionParser::power() {
  return binary(&ExpressionParser::operand, {{"**", Operator::kPower}});
}

Result<ExpressionPtr> ExpressionParser::unary(bool with_filters) {
  const std::size_t begin = tokens_.now().place.begin;
  ExpressionPtr value;
  if (tokens_.now().is_sign("-") || tokens_.now().is_sign("+")) {
    const DepthGuard guard(depth_);
    if (depth_ > kExpressionDepth) return tokens_.bad(begin, "too many signs in a row");
    const bool minus = tokens_.take().text == "-";
    BF_ASSIGN_OR_RETURN(ExpressionPtr part, unary(false));
    value = make(minus ? Expression::Kind::kNegate : Expression::Kind::kPlus, begin);
    BF_TRY(add(*value, std::move(part)));
  } else {
    BF_ASSIGN_OR_RETURN(value, primary());
  }
  BF_ASSIGN_OR_RETURN(value, postfix(std::move(value)));
  if (!with_filters) return value;
  return filters(std::move(value));
}

Result<ExpressionPtr> ExpressionParser::string_constant() {
  ExpressionPtr value = make(Expression::Kind::kConstant, tokens_.now().place.begin);
  std::string text;
  while (tokens_.now().kind == Token::Kind::kString) text += tokens_.take().text;
  value->constant = Value::literal(std::move(text));
  return finish(std::move(value));
}

Result<ExpressionPtr> ExpressionParser::primary() {
  const Token& token = tokens_.now();
  const std::size_t begin = token.place.begin;
  if (token.kind == Token::Kind::kString) return string_constant();
  if (token.is_sign("(")) return parentheses();
  if (token.is_sign("[")) return list();
  if (token.is_sign("{")) return dict();
  const bool name = token.kind == Token::Kind::kName;
  if (!name && token.kind != Token::Kind::kInteger && token.kind != Token::Kind::kFloat) {
    return tokens_.unexpected("an expression");
  }
  ExpressionPtr value = make(Expression::Kind::kConstant, begin);
  if (token.kind == Token::Kind::kInteger) {
    value->constant = Value::integer(token.integer);
  } else if (token.kind == Token::Kind::kFloat) {
    value->constant = Value::number(token.number);
  } else if (token.text == "true" || token.text == "True") {
    value->constant = Value::boolean(true);
  } else if (token.text == "false" || token.text == "False") {
    value->constant = Value::boolean(false);
  } else if (token.text == "none" || token.text == "None") {
    value->constant = Value::none();
  } else {
    value->kind = Expression::Kind::kName;
    value->name = token.text;
  }
  tokens_.take();
  return finish(std::move(value));
}

Result<ExpressionPtr> ExpressionParser::parentheses() {
  const std::size_t begin = tokens_.take().place.begin;
  if (tokens_.take_sign(")")) return finish(make(Expression::Kind::kTuple, begin));
  BF_ASSIGN_OR_RETURN(ExpressionPtr value, maybe_tuple());
  BF_TRY(tokens_.expect_sign(")"));
  return value;
}

Result<ExpressionPtr> ExpressionParser::list() {
  ExpressionPtr whole = make(Expression::Kind::kList, tokens_.take().place.begin);
  while (!tokens_.take_sign("]")) {
    if (!whole->parts.empty()) BF_TRY(tokens_.expect_sign(","));
    if (tokens_.take_sign("]")) break;
    BF_ASSIGN_OR_RETURN(ExpressionPtr part, expression());
    BF_TRY(add(*whole, std::move(part)));
  }
  return finish(std::move(whole));
}

Result<ExpressionPtr> ExpressionParser::dict() {
  ExpressionPtr whole = make(Expression::Kind::kDict, tokens_.take().place.begin);
  while (!tokens_.take_sign("}")) {
    if (!whole->parts.empty()) BF_TRY(tokens_.expect_sign(","));
    if (tokens_.take_sign("}")) break;
    BF_ASSIGN_OR_RETURN(ExpressionPtr key, expression());
    BF_TRY(add(*whole, std::move(key)));
    BF_TRY(tokens_.expect_sign(":"));
    BF_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    BF_TRY(add(*whole, std::move(value)));
  }
  return finish(std::move(whole));
}

Result<ExpressionPtr> ExpressionParser::postfix(ExpressionPtr subject) {
  while (true) {
    if (tokens_.now().is_sign(".")) {
      BF_ASSIGN_OR_RETURN(subject, attribute(std::move(subject)));
    } else if (tokens_.now().is_sign("[")) {
      BF_ASSIGN_OR_RETURN(subject, subscript(std::move(subject)));
    } else if (tokens_.now().is_sign("(")) {
      ExpressionPtr call = make(Expression::Kind::kCall, subject->place.begin);
      BF_TRY(add(*call, std::move(subject)));
      BF_TRY(arguments(*call));
      BF_ASSIGN_OR_RETURN(subject, finish(std::move(call)));
    } else {
      return subject;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::attribute(ExpressionPtr subject) {
  tokens_.take();
  const Token& token = tokens_.now();
  if (token.kind == Token::Kind::kInteger) {
    ExpressionPtr whole = make(Expression::Kind::kSubscript, subject->place.begin);
    ExpressionPtr index = make(Expression::Kind::kConstant, token.place.begin);
    index->constant = Value::integer(token.integer);
    tokens_.take();
    BF_TRY(add(*whole, std::move(subject)));
    BF_TRY(add(*whole, std::move(index)));
    return whole;
  }
  ExpressionPtr whole = make(Expression::Kind::kAttribute, subject->place.begin);
  BF_ASSIGN_OR_RETURN(whole->name, tokens_.expect_name());
  BF_TRY(add(*whole, std::move(subject)));
  return whole;
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr subject) {
  tokens_.take();
  ExpressionPtr whole = make(Expression::Kind::kSubscript, subject->place.begin);
  BF_TRY(add(*whole, std::move(subject)));
  ExpressionPtr first;
  if (!tokens_.now().is_sign(":")) {
    BF_ASSIGN_OR_RETURN(first, expression());
  }
  BF_TRY(add(*whole, std::move(first)));
  while (whole->parts.size() < 4 && tokens_.take_sign(":")) {
    whole->kind = Expression::Kind::kSlice;
    ExpressionPtr next;
    if (!tokens_.now().is_sign(":") && !tokens_.now().is_sign("]")) {
      BF_ASSIGN_OR_RETURN(next, expression());
    }
    BF_TRY(add(*whole, std::move(next)));
  }
  if (whole->kind == Expression::Kind::kSlice) whole->parts.resize(4);
  BF_TRY(tokens_.expect_sign("]"));
  return finish(std::move(whole));
}

Result<ExpressionPtr> ExpressionParser::filter(ExpressionPtr subject) {
  const std::size_t begin = subject ? subject->place.begin : tokens_.now().place.begin;
  ExpressionPtr whole = make(Expression::Kind::kFilter, begin);
  BF_ASSIGN_OR_RETURN(whole->name, tokens_.expect_name());
  BF_TRY(add(*whole, std::move(subject)));
  if (tokens_.now().is_sign("(")) BF_TRY(arguments(*whole));
  return finish(std::move(whole));
}

Result<ExpressionPtr> ExpressionParser::filters(ExpressionPtr subject) {
  while (true) {
    if (tokens_.take_sign("|")) {
      BF_ASSIGN_OR_RETURN(subject, filter(std::move(subject)));
    } else if (tokens_.now().is_name("is")) {
      BF_ASSIGN_OR_RETURN(subject, test(std::move(subject)));
    } else if (tokens_.now().is_sign("(")) {
      BF_ASSIGN_OR_RETURN(subject, postfix(std::move(subject)));
    } else {
      return subject;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr subject) {
  tokens_.take();
  const std::size_t begin = subject->place.begin;
  const bool negated = tokens_.take_name("not");
  ExpressionPtr whole = make(Expression::Kind::kTest, begin);
  BF_ASSIGN_OR_RETURN(whole->name, tokens_.expect_name());
  BF_TRY(add(*whole, std::move(subject)));
  const Token& next = tokens_.now();
  const bool word = next.kind == Token::Kind::kName && next.text != "else" && next.text != "or" && next.text != "and" &&
                    next.text != "if" && next.text != "is" && next.text != "not" && next.text != "in";
  if (next.is_sign("(")) {
    BF_TRY(arguments(*whole));
  } else if (word || next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
             next.kind == Token::Kind::kFloat || next.is_sign("[") || next.is_sign("{")) {
    BF_ASSIGN_OR_RETURN(ExpressionPtr argument, primary());
    BF_ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    BF_TRY(add(*whole, std::move(argument)));
  }
  BF_ASSIGN_OR_RETURN(whole, finish(std::move(whole)));
  if (!negated) return whole;
  ExpressionPtr opposite = make(Expression::Kind::kNot, begin);
  BF_TRY(add(*opposite, std::move(whole)));
  return opposite;
}

Status ExpressionParser::arguments(Expression& call) {
  const DepthGuard guard(depth_);
  BF_TRY(tokens_.expect_sign("("));
  for (bool first = true; !tokens_.take_sign(")"); first = false) {
    if (!first) BF_TRY(tokens_.expect_sign(","));
    if (tokens_.take_sign(")")) break;
    const Token& token = tokens_.now();
    if (call.unpacked_named) return tokens_.bad(token.place.begin, "no argument follows one that '**' unpacks");
    if (token.is_sign("*") || token.is_sign("**")) {
      ExpressionPtr& unpacked = tokens_.take().is_sign("*") ? call.unpacked : call.unpacked_named;
      if (unpacked) return tokens_.bad(token.place.begin, "'*' unpacks a second list");
      BF_ASSIGN_OR_RETURN(unpacked, expression());
      call.depth = std::max(call.depth, unpacked->depth + 1);
      continue;
    }
    if (token.kind == Token::Kind::kName && tokens_.ahead(1).is_sign("=")) {
      std::string name = tokens_.take().text;
      tokens_.take();
      BF_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!call.named.empty() || call.unpacked) {
      return tokens_.bad(token.place.begin, "an argument without a name follows one with, or '*'");
    }
    BF_ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    BF_TRY(add(call, std::move(value)));
  }
  return {};
}

}  // namespace butterfly::chat
