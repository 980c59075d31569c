// UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
// Plain functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace butterfly {

/// What stands at the front of some bytes.
struct Utf8Step {
  enum class Kind : std::uint8_t { kCharacter, kIncomplete, kInvalid };
  Kind kind = Kind::kInvalid;
  /// Bytes of the character; where kIncomplete, all the bytes there are; where kInvalid, the bytes that one U+FFFD
  /// replaces ("maximal subpart", The Unicode Standard, section 3.9).
  int size = 1;
  char32_t code_point = 0;
};

/// The first step through `bytes`, which must not be empty.
Utf8Step utf8_step(std::string_view bytes);

/// Offset of the first byte that does not belong to a character, or nothing where all do.
std::optional<std::size_t> find_invalid_utf8(std::string_view bytes);

/// Appends `code_point`, a scalar value, as one to four bytes.
void append_utf8(std::string& text, char32_t code_point);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";          // U+2581, sentencepiece's space

}  // namespace butterfly
