// Base64 as files have it: the standard alphabet, padded. Plain function, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/base/result.h"

namespace butterfly {

/// Errors: kBadData naming the character that has no place there.
Result<std::string> decode_base64(std::string_view text);

}  // namespace butterfly
