// Text as Python sees it: characters, white space, cases. Plain functions, thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/text/template/marked_text.h"

namespace butterfly::chat {

bool is_python_space(char32_t character);

/// What str.isprintable() says of it.
bool is_printable(char32_t character);
bool is_letter(char32_t character);
bool is_upper(char32_t character);
bool is_lower(char32_t character);

/// Bytes at the front, or at the end, of `text` that are white space, or characters of `set` where that is not null.
std::size_t leading(std::string_view text, const std::string_view* set);
std::size_t trailing(std::string_view text, const std::string_view* set);

/// The first byte of each character, and the size of the text.
std::vector<std::size_t> character_starts(std::string_view text);
std::size_t count_characters(std::string_view text);

/// The character at byte `at`, and its size.
struct Character {
  char32_t code = 0;
  std::size_t size = 1;
};
Character character_at(std::string_view text, std::size_t at);

enum class LetterCase : unsigned char { kUpper, kLower };
void append_in_case(MarkedText& out, const MarkedText& text, std::size_t begin, std::size_t end, LetterCase wanted);
MarkedText in_case(const MarkedText& text, LetterCase wanted);

/// The first `most` lines without their ends, as str.splitlines() cuts them: [begin, end) of each, and the end with its
/// line end.
struct Line {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t next = 0;
};
std::vector<Line> split_lines(std::string_view text, std::size_t most);

/// The place of `needle` at or after `from`, npos where it is not; linear, whatever both are.
std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from = 0);

}  // namespace butterfly::chat
