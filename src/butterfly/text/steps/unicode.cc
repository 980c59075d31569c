#include "butterfly/text/steps/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

int combining_class(utf8proc_int32_t c) {
  return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

bool append_decomposed(std::vector<utf8proc_int32_t>& characters, char32_t c, utf8proc_option_t options) {
  constexpr utf8proc_ssize_t kLongest = 32;  // the longest of Unicode's has 18
  utf8proc_int32_t parts[kLongest];
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kLongest, options, &boundary);
  if (count < 0 || count > kLongest) return false;
  characters.insert(characters.end(), parts, parts + count);
  return true;
}

/// Marks of one base by their class. utf8proc's own way takes quadratic time for a text of nothing but marks.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  for (std::size_t begin = 0; begin < characters.size();) {
    if (combining_class(characters[begin]) == 0) {
      ++begin;
      continue;
    }
    std::size_t end = begin + 1;
    while (end < characters.size() && combining_class(characters[end]) != 0) ++end;
    if (end - begin > 1) {
      std::stable_sort(characters.begin() + static_cast<std::ptrdiff_t>(begin),
                       characters.begin() + static_cast<std::ptrdiff_t>(end),
                       [](auto left, auto right) { return combining_class(left) < combining_class(right); });
    }
    begin = end;
  }
}

}  // namespace

bool is_unicode_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  switch (c) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return c >= 0x2000 && c <= 0x200A;
  }
}

bool is_unicode_punctuation(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_unicode_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_unicode_mark(char32_t c) {
  if (c < 0x300) return false;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t c) {
  return c >= 0x300 && category(c) == UTF8PROC_CATEGORY_MN;
}

bool is_unicode_other(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_CC && kind <= UTF8PROC_CATEGORY_CO;
}

bool is_unicode_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  const auto kind = category(c);
  if (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NL) return true;  // letters, marks, Nd, Nl
  if (kind == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D) return true;
  // Circled and squared letters are symbols by category, and alphabetic.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_punctuation_or_ascii_symbol(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  }
  return is_unicode_punctuation(c);
}

bool is_bert_han(char32_t c) {
  const auto in = [&](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (c < 0x3400) return false;
  // The fifth range begins 0x100 late in `tokenizers` and llama.cpp alike, and so in what models were trained on.
  return in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) || in(0x2A700, 0x2B73F) ||
         in(0x2B740, 0x2B81F) || in(0x2B920, 0x2CEAF) || in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F);
}

void append_lower_case(std::string& text, char32_t c) {
  if (c < 0x80) {
    text.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {  // the only character with a lower case of two
    append_utf8(text, U'i');
    append_utf8(text, 0x307);
  } else {
    append_utf8(text, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

Result<std::string> to_normal_form(std::string_view text, NormalForm form) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return std::string(text);
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (composed ? UTF8PROC_COMPOSE : 0) | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Character c = first_character(text.substr(i));
    i += c.size;
    if (c.code_point < 0xA0) {  // decomposes in no form
      characters.push_back(static_cast<utf8proc_int32_t>(c.code_point));
    } else if (!append_decomposed(characters, c.code_point, options)) {
      return make_error(ErrorCode::kUnsupported, "U+{:04X} has no normal form", static_cast<unsigned>(c.code_point));
    }
  }
  order_marks(characters);
  auto count = static_cast<utf8proc_ssize_t>(characters.size());
  if (composed) count = utf8proc_normalize_utf32(characters.data(), count, options);
  if (count < 0) return make_error(ErrorCode::kUnsupported, "no normal form: {}", utf8proc_errmsg(count));
  std::string result;
  result.reserve(text.size());
  characters.resize(static_cast<std::size_t>(count));
  for (utf8proc_int32_t c : characters) append_utf8(result, static_cast<char32_t>(c));
  return result;
}

std::size_t first_grapheme(std::string_view text) {
  Character current = first_character(text);
  std::size_t end = current.size;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    const Character next = first_character(text.substr(end));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(current.code_point),
                                         static_cast<utf8proc_int32_t>(next.code_point), &state)) {
      break;
    }
    current = next;
    end += next.size;
  }
  return end;
}

}  // namespace butterfly
