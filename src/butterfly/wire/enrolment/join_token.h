// What an administrator carries from the coordinator to a new node: a secret that admits it once, and by what to
// recognise the cluster. Plain values.
#pragma once

#include <string>
#include <string_view>

#include "butterfly/wire/enrolment/certificates.h"

namespace butterfly {

using TokenSecret = std::array<std::byte, 16>;  // 128 random bits, from the operating system

struct JoinToken {
  TokenSecret secret{};
  Fingerprint authority{};  // of the certificate that must have signed the coordinator's
  WallTime expires{};       // whole seconds; what counts is what the coordinator noted
};

/// "bf1-" and 120 hexadecimal digits.
std::string encode_token(const JoinToken& token);

/// Errors: kInvalidArgument; the message never repeats the token.
Result<JoinToken> decode_token(std::string_view text);

}  // namespace butterfly
