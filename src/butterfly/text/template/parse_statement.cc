#include <algorithm>
#include <span>

#include "butterfly/base/text/one_line.h"
#include "butterfly/text/template/parser.h"
#include "butterfly/text/utf8.h"

namespace butterfly::chat {

namespace {

constexpr int kBlockDepth = 60;
constexpr std::size_t kSourceBytes = std::size_t{1} << 19;

using Ends = std::initializer_list<std::string_view>;

class StatementParser {
 public:
  explicit StatementParser(TokenReader& tokens) : tokens_(tokens), expressions_(tokens) {}

  Result<Body> whole() {
    BF_ASSIGN_OR_RETURN(Body body, until({}));
    if (tokens_.now().kind != Token::Kind::kEnd) return tokens_.unexpected("text or a tag");
    return body;
  }

 private:
  /// Statements up to a tag with one of the names in `ends`, which stays the next token.
  Result<Body> until(Ends ends);
  Result<Statement> tag();
  Status end_tag();
  /// The body, and its end tag `end`.
  Result<Body> block(std::string_view end);
  Result<Statement> if_tag();
  Result<Statement> for_tag();
  Result<Statement> set_tag();
  Result<Statement> macro_tag();
  Result<Statement> call_tag();
  Result<Statement> filter_tag();
  Result<Statement> with_tag();
  Result<Statement> group_tag();
  Result<Target> target(std::string_view end);
  Result<Target> one_target(int depth);
  Result<std::vector<Parameter>> parameters();
  /// The body of `macro` up to the tag `end`.
  Status macro_body(MacroSyntax& macro, std::string_view end);
  Statement make(Statement::Kind kind, std::size_t begin) {
    Statement made;
    made.kind = kind;
    made.place = {begin, tokens_.last_end()};
    return made;
  }

  TokenReader& tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int loops_ = 0;
};

Result<Body> StatementParser::until(Ends ends) {
  if (++depth_ > kBlockDepth) {
    return template_error(ErrorCode::kUnsupported, tokens_.source(), tokens_.now().place.begin,
                          fmt::format("blocks are nested more than {} deep", kBlockDepth));
  }
  Body body;
  while (tokens_.now().kind != Token::Kind::kEnd) {
    const Token& token = tokens_.now();
    if (token.kind == Token::Kind::kText) {
      tokens_.take();
      body.push_back(make(Statement::Kind::kText, token.place.begin));
      body.back().text = token.text;
    } else if (token.kind == Token::Kind::kOutputBegin) {
      tokens_.take();
      Statement output = make(Statement::Kind::kOutput, token.place.begin);
      BF_ASSIGN_OR_RETURN(output.expression, expressions_.maybe_tuple());
      BF_TRY(tokens_.expect(Token::Kind::kOutputEnd, "'}}'"));
      body.push_back(std::move(output));
    } else if (token.kind == Token::Kind::kBlockBegin) {
      const Token& name = tokens_.ahead(1);
      if (name.kind == Token::Kind::kName && std::ranges::find(ends, name.text) != ends.end()) break;
      BF_ASSIGN_OR_RETURN(Statement statement, tag());
      body.push_back(std::move(statement));
    } else {
      return tokens_.unexpected("text or a tag");
    }
  }
  --depth_;
  return body;
}

Status StatementParser::end_tag() {
  return tokens_.expect(Token::Kind::kBlockEnd, "'%}'");
}

Result<Body> StatementParser::block(std::string_view end) {
  BF_TRY(end_tag());
  BF_ASSIGN_OR_RETURN(Body body, until({end}));
  if (tokens_.now().kind == Token::Kind::kEnd) return tokens_.unexpected(fmt::format("'{}'", end));
  tokens_.take();
  tokens_.take();
  return body;
}

Result<Statement> StatementParser::tag() {
  const std::size_t begin = tokens_.take().place.begin;
  if (tokens_.now().kind != Token::Kind::kName) return tokens_.unexpected("the name of a tag");
  const std::string name = tokens_.take().text;
  const auto parse = [&]() -> Result<Statement> {
    if (name == "if") return if_tag();
    if (name == "for") return for_tag();
    if (name == "set") return set_tag();
    if (name == "macro") return macro_tag();
    if (name == "call") return call_tag();
    if (name == "filter") return filter_tag();
    if (name == "with") return with_tag();
    if (name == "generation") return group_tag();
    if (name == "print") {
      Statement output = make(Statement::Kind::kOutput, begin);
      BF_ASSIGN_OR_RETURN(output.expression, expressions_.maybe_tuple());
      return output;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return tokens_.bad(begin, fmt::format("'{}' stands outside a loop", name));
      return make(name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, begin);
    }
    for (const char* known : {"include", "import", "from", "extends", "block", "autoescape", "trans", "do"}) {
      if (name != known) continue;
      return template_error(ErrorCode::kUnsupported, tokens_.source(), begin,
                            fmt::format("the tag '{}' is not supported: chat templates stand alone", name));
    }
    return tokens_.bad(begin, fmt::format("unexpected tag '{}'", one_line(name)));
  };
  BF_ASSIGN_OR_RETURN(Statement statement, parse());
  statement.place.begin = begin;
  BF_TRY(end_tag());
  return statement;
}

Result<Statement> StatementParser::if_tag() {
  Statement whole = make(Statement::Kind::kIf, 0);
  while (true) {
    Branch branch;
    BF_ASSIGN_OR_RETURN(branch.condition, expressions_.maybe_tuple());
    BF_TRY(end_tag());
    BF_ASSIGN_OR_RETURN(branch.body, until({"elif", "else", "endif"}));
    whole.branches.push_back(std::move(branch));
    if (tokens_.now().kind == Token::Kind::kEnd) return tokens_.unexpected("'endif'");
    tokens_.take();
    const std::string name = tokens_.take().text;
    if (name == "endif") return whole;
    if (name == "elif") continue;
    BF_ASSIGN_OR_RETURN(whole.otherwise, block("endif"));
    return whole;
  }
}

Result<Target> StatementParser::one_target(int depth) {
  if (depth > kBlockDepth) return tokens_.unexpected("a name");
  Target target;
  if (tokens_.take_sign("(")) {
    while (!tokens_.take_sign(")")) {
      if (!target.parts.empty()) BF_TRY(tokens_.expect_sign(","));
      if (tokens_.take_sign(")")) break;
      BF_ASSIGN_OR_RETURN(Target part, one_target(depth + 1));
      target.parts.push_back(std::move(part));
    }
    return target;
  }
  const std::size_t begin = tokens_.now().place.begin;
  BF_ASSIGN_OR_RETURN(target.name, tokens_.expect_name());
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (target.name == constant) return tokens_.bad(begin, fmt::format("'{}' cannot be assigned to", constant));
  }
  if (tokens_.take_sign(".")) {
    BF_ASSIGN_OR_RETURN(target.attribute, tokens_.expect_name());
  }
  return target;
}

/// One name, or several with commas between them, before `end`.
Result<Target> StatementParser::target(std::string_view end) {
  BF_ASSIGN_OR_RETURN(Target first, one_target(0));
  if (!tokens_.now().is_sign(",")) return first;
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (tokens_.take_sign(",")) {
    if (tokens_.now().is_name(end) || tokens_.now().is_sign(end)) break;
    BF_ASSIGN_OR_RETURN(Target part, one_target(0));
    tuple.parts.push_back(std::move(part));
  }
  return tuple;
}

Result<Statement> StatementParser::for_tag() {
  Statement loop = make(Statement::Kind::kFor, 0);
  BF_ASSIGN_OR_RETURN(Target each, target("in"));
  loop.targets.push_back(std::move(each));
  if (!tokens_.take_name("in")) return tokens_.unexpected("'in'");
  BF_ASSIGN_OR_RETURN(loop.expression, expressions_.maybe_tuple(false));
  if (tokens_.take_name("if")) {
    BF_ASSIGN_OR_RETURN(loop.condition, expressions_.expression());
  }
  loop.recursive = tokens_.take_name("recursive");
  BF_TRY(end_tag());
  ++loops_;
  BF_ASSIGN_OR_RETURN(loop.body, until({"else", "endfor"}));
  --loops_;
  if (tokens_.now().kind == Token::Kind::kEnd) return tokens_.unexpected("'endfor'");
  tokens_.take();
  if (tokens_.take().text == "else") {
    BF_ASSIGN_OR_RETURN(loop.otherwise, block("endfor"));
  }
  return loop;
}

Result<Statement> StatementParser::set_tag() {
  Statement set = make(Statement::Kind::kSet, 0);
  BF_ASSIGN_OR_RETURN(Target what, target("="));
  set.targets.push_back(std::move(what));
  if (tokens_.take_sign("=")) {
    BF_ASSIGN_OR_RETURN(set.expression, expressions_.maybe_tuple());
    return set;
  }
  set.kind = Statement::Kind::kSetBlock;
  if (tokens_.take_sign("|")) {
    BF_ASSIGN_OR_RETURN(set.expression, expressions_.filter(nullptr));
    BF_ASSIGN_OR_RETURN(set.expression, expressions_.filters(std::move(set.expression)));
  }
  BF_ASSIGN_OR_RETURN(set.body, block("endset"));
  return set;
}

Result<std::vector<Parameter>> StatementParser::parameters() {
  std::vector<Parameter> all;
  BF_TRY(tokens_.expect_sign("("));
  while (!tokens_.take_sign(")")) {
    if (!all.empty()) BF_TRY(tokens_.expect_sign(","));
    if (tokens_.take_sign(")")) break;
    Parameter parameter;
    BF_ASSIGN_OR_RETURN(parameter.name, tokens_.expect_name());
    if (tokens_.take_sign("=")) {
      BF_ASSIGN_OR_RETURN(parameter.standard, expressions_.expression());
    } else if (!all.empty() && all.back().standard) {
      return tokens_.unexpected(fmt::format("a default for '{}', as the parameter before it has one", parameter.name));
    }
    all.push_back(std::move(parameter));
  }
  return all;
}

Status StatementParser::macro_body(MacroSyntax& macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  const std::size_t first = tokens_.position();
  BF_ASSIGN_OR_RETURN(Body body, block(end));
  loops_ = loops;
  macro.takes_varargs = tokens_.names_since(first, "varargs");
  macro.takes_kwargs = tokens_.names_since(first, "kwargs");
  macro.body = std::make_shared<const Body>(std::move(body));
  return {};
}

Result<Statement> StatementParser::macro_tag() {
  Statement macro = make(Statement::Kind::kMacro, 0);
  macro.macro.emplace();
  BF_ASSIGN_OR_RETURN(macro.macro->name, tokens_.expect_name());
  BF_ASSIGN_OR_RETURN(macro.macro->parameters, parameters());
  BF_TRY(macro_body(*macro.macro, "endmacro"));
  if (tokens_.now().kind == Token::Kind::kName) tokens_.take();
  return macro;
}

Result<Statement> StatementParser::call_tag() {
  Statement call = make(Statement::Kind::kCall, 0);
  call.macro.emplace();
  call.macro->name = "caller";
  if (tokens_.now().is_sign("(")) {
    BF_ASSIGN_OR_RETURN(call.macro->parameters, parameters());
  }
  const std::size_t begin = tokens_.now().place.begin;
  BF_ASSIGN_OR_RETURN(call.expression, expressions_.expression());
  if (call.expression->kind != Expression::Kind::kCall) return tokens_.bad(begin, "expected a call of a macro");
  BF_TRY(macro_body(*call.macro, "endcall"));
  return call;
}

Result<Statement> StatementParser::filter_tag() {
  Statement filter = make(Statement::Kind::kFilter, 0);
  BF_ASSIGN_OR_RETURN(filter.expression, expressions_.filter(nullptr));
  BF_ASSIGN_OR_RETURN(filter.expression, expressions_.filters(std::move(filter.expression)));
  BF_ASSIGN_OR_RETURN(filter.body, block("endfilter"));
  return filter;
}

Result<Statement> StatementParser::with_tag() {
  Statement with = make(Statement::Kind::kWith, 0);
  while (tokens_.now().kind != Token::Kind::kBlockEnd) {
    if (!with.targets.empty()) BF_TRY(tokens_.expect_sign(","));
    BF_ASSIGN_OR_RETURN(Target what, one_target(0));
    BF_TRY(tokens_.expect_sign("="));
    BF_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.expression());
    with.targets.push_back(std::move(what));
    with.values.push_back(std::move(value));
  }
  BF_ASSIGN_OR_RETURN(with.body, block("endwith"));
  return with;
}

Result<Statement> StatementParser::group_tag() {
  Statement group = make(Statement::Kind::kGroup, 0);
  const int loops = std::exchange(loops_, 0);
  BF_ASSIGN_OR_RETURN(group.body, block("endgeneration"));
  loops_ = loops;
  return group;
}

/// Line ends become '\n', and one at the very end is no part of the template.
std::string normalise(const std::string& source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

int line_at(const Template& parsed, std::size_t place) {
  const auto end = parsed.source.begin() + static_cast<std::ptrdiff_t>(std::min(place, parsed.source.size()));
  return 1 + static_cast<int>(std::count(parsed.source.begin(), end, '\n'));
}

Result<std::shared_ptr<const Template>> parse_template(std::string source) {
  if (source.size() > kSourceBytes) {
    return make_error(ErrorCode::kUnsupported, "the chat template has {} bytes, at most {} are possible", source.size(),
                      kSourceBytes);
  }
  if (const auto offset = find_invalid_utf8(source)) {
    return make_error(ErrorCode::kBadData, "the chat template is not valid UTF-8: byte 0x{:02X} at offset {}",
                      static_cast<unsigned char>(source[*offset]), *offset);
  }
  auto parsed = std::make_shared<Template>();
  parsed->source = normalise(source);
  BF_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize_template(parsed->source));
  TokenReader reader(parsed->source, std::move(tokens));
  BF_ASSIGN_OR_RETURN(parsed->body, StatementParser(reader).whole());
  return std::shared_ptr<const Template>(std::move(parsed));
}

}  // namespace butterfly::chat
