// What may have been meant by a misspelt word. A plain function, thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace butterfly {

/// The one of `known` that takes the fewest letters to insert, delete, replace or swap with the next, at most a third
/// of the word's (one, for short words). Empty where none is that near, where `word` is itself one of them, and for
/// words of more than 80 letters.
std::string nearest_word(std::string_view word, std::span<const std::string> known);

}  // namespace butterfly
