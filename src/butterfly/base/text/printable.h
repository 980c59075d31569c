// Text from outside made fit for a message. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace butterfly {

/// At most 80 bytes of it, other than printable ASCII as '?'.
std::string printable(std::string_view text);

}  // namespace butterfly
