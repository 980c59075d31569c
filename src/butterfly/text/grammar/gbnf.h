// Grammars in llama.cpp's GBNF: rules `name ::= ...` of which `root` is the whole text; "literals" and [classes] with
// \n \t \r \\ \" \] \xHH \uHHHH \UHHHHHHHH, `.` for any character, groups, |, * + ? {n} {n,} {n,m}, comments behind #.
// Left recursion and rules that are not defined are refused by name, and so are references to tokens, <[1]>.
// Thread-safe.
#pragma once

#include <memory>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/text/grammar/grammar.h"

namespace butterfly {

/// Errors: kInvalidArgument naming the line, or the rule.
Result<std::shared_ptr<const Grammar>> compile_gbnf(std::string_view text);

}  // namespace butterfly
