// Cuts a template's source into text and tokens, with white space as transformers asks of Jinja: trim_blocks and
// lstrip_blocks. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/text/template/syntax.h"

namespace butterfly::chat {

struct Token {
  enum class Kind : std::uint8_t {
    kText,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kSign,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // the sign, the name, the string with its escapes replaced, the number as written
  SourcePlace place;
  std::int64_t integer = 0;
  double number = 0;

  bool is_sign(std::string_view sign) const { return kind == Kind::kSign && text == sign; }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
};

/// Ends with a token kEnd. Errors: kBadData naming the line.
Result<std::vector<Token>> tokenize_template(std::string_view source);

/// "line 3: " and the message.
tl::unexpected<Error> template_error(ErrorCode code, std::string_view source, std::size_t place,
                                     const std::string& message);

}  // namespace butterfly::chat
