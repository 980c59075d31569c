// SHA-256, and digests for people. Plain functions, thread-safe.
#pragma once

#include <array>
#include <string>

#include "butterfly/base/bytes.h"

namespace butterfly {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(ByteSpan bytes);

/// Lower-case.
std::string to_hex(ByteSpan bytes);

}  // namespace butterfly
