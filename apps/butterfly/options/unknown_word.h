// What a user may have meant by a word that is no command and no option.
#pragma once

#include <optional>
#include <string>

#include "options/options.h"

namespace butterfly::app {

/// After a command line was refused: a sentence about its first word that nobody knows, with the nearest command or
/// option where one is near. Nothing where every word is known and something else is wrong.
std::optional<std::string> unknown_word(const Command& program);

}  // namespace butterfly::app
