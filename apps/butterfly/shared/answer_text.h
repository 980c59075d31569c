// An answer on stdout, piece by piece, and notes on stderr that come while it is written. Thread-safe.
#pragma once

#include <string_view>

namespace butterfly::app {

/// Writes `text` to stdout at once. False: that failed, as errno says.
bool write_answer(std::string_view text);

/// A line on stderr; on a terminal that shows the answer, too, not in the middle of one of its lines.
void write_note(std::string_view line);

}  // namespace butterfly::app
