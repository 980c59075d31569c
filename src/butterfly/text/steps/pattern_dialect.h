// Regular expressions of Oniguruma and of Rust, rewritten for PCRE2. Plain function, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/text/steps/step_options.h"

namespace butterfly {

/// Classes of white space and of word characters become those of the Unicode standard, of which PCRE2 has its own
/// idea; intersections of classes become lookaheads; what one dialect spells otherwise is spelled as in PCRE2.
/// Errors: kUnsupported for what has no counterpart. What is no expression at all stays what it is.
Result<std::string> to_pcre2(std::string_view expression, PatternDialect dialect);

}  // namespace butterfly
