// Tiktoken's files of ranks (a token in base64 and its rank, line by line) as a Vocabulary. Plain functions,
// thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/base/result.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// Whether the first line of `bytes` is a token in base64 and a number.
bool looks_like_tiktoken(std::string_view bytes);

/// The file does not say how it cuts texts nor which special tokens there are. Both come from the family that `name`
/// (its name, or that of its folder) tells, such as "o200k_base.tiktoken" or "qwen.tiktoken", else from how many ranks
/// it has; `tokenizer_config_json`, which may be empty, adds tokens of its own. Errors: kBadData for a line that is
/// none, a rank that is missing or there twice; kUnsupported for a family that is not known.
Result<Vocabulary> read_tiktoken(std::string_view bytes, std::string_view name,
                                 const std::string& tokenizer_config_json);

}  // namespace butterfly
