// What Unicode says about characters and texts, by the tables of utf8proc. Plain functions, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "butterfly/base/result.h"

namespace butterfly {

bool is_unicode_space(char32_t c);        // White_Space
bool is_unicode_punctuation(char32_t c);  // category P
bool is_unicode_number(char32_t c);       // category N
bool is_unicode_mark(char32_t c);         // category M
bool is_nonspacing_mark(char32_t c);      // category Mn
bool is_unicode_other(char32_t c);        // Cc, Cf, Co, Cs
bool is_unicode_word(char32_t c);         // what \w is in Unicode's recommendation for regular expressions

/// ASCII punctuation and symbols, and category P.
bool is_punctuation_or_ascii_symbol(char32_t c);

/// Han ideographs by BERT's ranges.
bool is_bert_han(char32_t c);

/// Appends the lower case of `c`, without regard to what stands around it.
void append_lower_case(std::string& text, char32_t c);

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// Errors: kUnsupported where the text cannot be held in that form.
Result<std::string> to_normal_form(std::string_view text, NormalForm form);

/// Bytes of the first grapheme cluster of `text`, which is valid UTF-8 and not empty.
std::size_t first_grapheme(std::string_view text);

/// The character at the front of `text`, valid UTF-8 and not empty, and its bytes.
struct Character {
  char32_t code_point = 0;
  std::size_t size = 1;
};
inline Character first_character(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1Fu) << 6) | (at(1) & 0x3Fu), 2};
  if (lead < 0xF0) return {((lead & 0x0Fu) << 12) | ((at(1) & 0x3Fu) << 6) | (at(2) & 0x3Fu), 3};
  return {((lead & 0x07u) << 18) | ((at(1) & 0x3Fu) << 12) | ((at(2) & 0x3Fu) << 6) | (at(3) & 0x3Fu), 4};
}

}  // namespace butterfly
