// The pieces of JSON texts as expressions: strings, numbers, any value, constants, and the white space between them.
// After an opening bracket or a comma and before a closing bracket there is nothing, one space, or a line end and up to
// 16 spaces; after a colon nothing or one space. Borrows its builder; not thread-safe.
#pragma once

#include <optional>

#include "butterfly/base/json.h"
#include "butterfly/text/grammar/grammar_builder.h"

namespace butterfly {

class JsonPieces {
 public:
  using Expr = GrammarBuilder::Expr;
  explicit JsonPieces(GrammarBuilder& builder) : builder_(builder) {}

  Expr gap();
  Expr colon();
  Expr comma() { return builder_.sequence({builder_.bytes(","), gap()}); }

  /// Any string with its quotation marks, of `least` to `most` characters.
  Expr string(std::uint32_t least = 0, std::uint32_t most = GrammarBuilder::kUnbounded);
  /// A character of the set as a string has it: itself, or its shortest escape.
  Expr characters(const CodePointSet& set);
  Expr quoted(Expr inside) { return builder_.sequence({builder_.bytes("\""), inside, builder_.bytes("\"")}); }
  /// Any string without escapes that is none of `keys`.
  Expr other_key(const std::vector<std::string>& keys);

  Expr integer();
  Expr number();
  Expr boolean() { return builder_.any_of({"true", "false"}); }
  Expr null() { return builder_.bytes("null"); }
  Expr value();
  Expr object();
  Expr array();
  Expr constant(const nlohmann::ordered_json& value);

  Expr members(Expr member);  // any number of them, in braces
  Expr elements(Expr element, std::uint32_t least = 0, std::uint32_t most = GrammarBuilder::kUnbounded);

 private:
  Expr any_character();
  Expr call(std::optional<GrammarBuilder::Rule>& rule, const char* name, Expr (JsonPieces::*make)());
  Expr make_gap();
  Expr make_string();
  Expr make_value();
  Expr make_object();
  Expr make_array();

  GrammarBuilder& builder_;
  std::optional<GrammarBuilder::Rule> gap_;
  std::optional<GrammarBuilder::Rule> string_;
  std::optional<GrammarBuilder::Rule> value_;
  std::optional<GrammarBuilder::Rule> object_;
  std::optional<GrammarBuilder::Rule> array_;
};

}  // namespace butterfly
