// CRC-32C (Castagnoli), which finds accidents in a byte stream: programs that lost their place, memory or a network
// card that flips bits. No protection against a hostile peer. Plain functions, thread-safe.
#pragma once

#include <cstdint>

#include "butterfly/base/bytes.h"

namespace butterfly {

/// Reflected polynomial 0x82F63B78, as of RFC 3720 appendix B.4. `before` is the checksum of the bytes that came
/// before these, so that crc32c(b, crc32c(a)) is that of a followed by b. Uses the CPU's instruction where it has one.
std::uint32_t crc32c(ByteSpan bytes, std::uint32_t before = 0);

/// The same without that instruction.
std::uint32_t crc32c_portable(ByteSpan bytes, std::uint32_t before = 0);

}  // namespace butterfly
