// Regular expressions as grammars. What is understood: characters, `.` (not a line end), classes with ranges and
// negation, \d \w \s \D \W \S, \n \t \r \f \v \0, \xHH, \uHHHH, \u{H...}, groups (also (?:...) and named ones), |,
// * + ? {n} {n,} {n,m} (a `?` behind them changes nothing of what matches), ^ and $ at the ends. \d, \w and \s are
// ASCII's, and so is what \D and \W leave; \S has all other characters but Unicode's spaces. Back references,
// look-around, \b, \B, \p, possessive quantifiers and inline flags are refused by name. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/text/grammar/grammar_builder.h"

namespace butterfly {

struct RegexOptions {
  /// How a character of a set is written where the expression stands; nothing: as its UTF-8.
  std::function<GrammarBuilder::Expr(const CodePointSet&)> characters{};
  /// A match may stand anywhere in the text unless ^ and $ say otherwise, as in a JSON schema; otherwise it is all of
  /// it.
  bool search = false;
  CodePointSet any = CodePointSet::all();  // characters that a text can have
};

/// Errors: kInvalidArgument naming what is not understood, and where.
Result<GrammarBuilder::Expr> add_regex(GrammarBuilder& builder, std::string_view pattern,
                                       const RegexOptions& options = {});

/// Texts that match as a whole.
Result<std::shared_ptr<const Grammar>> compile_regex(std::string_view pattern);

}  // namespace butterfly
