// Sentences for a terminal or a log that quote what others wrote: a peer's error, a name in a file. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace butterfly {

/// The text with '?' for what would steer a terminal or begin a line of its own: control characters, marks that turn
/// the direction of writing, and bytes outside UTF-8. Tabs and line ends become a space.
std::string one_line(std::string_view text);

}  // namespace butterfly
