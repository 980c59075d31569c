#include "butterfly/text/template/python_text.h"

#include <clocale>
#include <cstring>
#include <cwctype>

#include "butterfly/text/utf8.h"

namespace butterfly::chat {

namespace {

/// The C library's tables of Unicode, whatever the user's locale. Null where it has none: then only ASCII has cases.
locale_t unicode_locale() {
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

template <typename Function>
bool ask(char32_t character, Function function) {
  const locale_t locale = unicode_locale();
  return locale != nullptr && function(static_cast<wint_t>(character), locale) != 0;
}

char32_t change_case(char32_t character, LetterCase wanted) {
  const bool upper = wanted == LetterCase::kUpper;
  if (character < 0x80) {
    if (upper) return character >= 'a' && character <= 'z' ? character - 32 : character;
    return character >= 'A' && character <= 'Z' ? character + 32 : character;
  }
  const locale_t locale = unicode_locale();
  if (locale == nullptr) return character;
  const auto wide = static_cast<wint_t>(character);
  return static_cast<char32_t>(upper ? ::towupper_l(wide, locale) : ::towlower_l(wide, locale));
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool in_set(std::string_view text, std::size_t at, const Character& character, const std::string_view* set) {
  if (set == nullptr) return is_python_space(character.code);
  return set->find(text.substr(at, character.size)) != std::string_view::npos;
}

}  // namespace

bool is_python_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  if (c < 0xA1 || c == 0xAD || is_python_space(c)) return false;
  if (c >= 0xE000 && c <= 0xF8FF) return false;  // private use
  if ((c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F)) return false;
  if (c == 0xFEFF || (c >= 0xFFF0 && c <= 0xFFFB) || c >= 0xE0000) return c >= 0xE0100 && c <= 0xE01EF;
  return unicode_locale() == nullptr || ask(c, ::iswprint_l);
}

bool is_letter(char32_t c) {
  return ask(c, ::iswalpha_l) && !(c >= '0' && c <= '9');
}

bool is_upper(char32_t c) {
  return change_case(c, LetterCase::kLower) != c || ask(c, ::iswupper_l);
}

bool is_lower(char32_t c) {
  return ask(c, ::iswlower_l);
}

Character character_at(std::string_view text, std::size_t at) {
  const Utf8Step step = utf8_step(text.substr(at));
  if (step.kind != Utf8Step::Kind::kCharacter) return {0xFFFD, 1};
  return {step.code_point, static_cast<std::size_t>(step.size)};
}

std::size_t leading(std::string_view text, const std::string_view* set) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character character = character_at(text, at);
    if (!in_set(text, at, character, set)) break;
    at += character.size;
  }
  return at;
}

std::size_t trailing(std::string_view text, const std::string_view* set) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t at = end - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u && end - at < 4) --at;
    const Character character = character_at(text, at);
    if (at + character.size != end || !in_set(text, at, character, set)) break;
    end = at;
  }
  return text.size() - end;
}

std::vector<std::size_t> character_starts(std::string_view text) {
  std::vector<std::size_t> starts;
  starts.reserve(text.size() + 1);
  for (std::size_t at = 0; at < text.size(); at += character_at(text, at).size) starts.push_back(at);
  starts.push_back(text.size());
  return starts;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u ? 1 : 0;
  return count;
}

void append_in_case(MarkedText& out, const MarkedText& text, std::size_t begin, std::size_t end, LetterCase wanted) {
  constexpr char32_t kSharpS = 0xDF;
  std::string changed;
  for (std::size_t at = begin; at < end;) {
    const Character character = character_at(text.bytes, at);
    changed.clear();
    if (character.code == kSharpS && wanted == LetterCase::kUpper) {
      changed = "SS";
    } else {
      append_utf8(changed, change_case(character.code, wanted));
    }
    out.append(changed, text.mark(at));
    at += character.size;
  }
}

MarkedText in_case(const MarkedText& text, LetterCase wanted) {
  MarkedText out;
  append_in_case(out, text, 0, text.size(), wanted);
  return out;
}

std::vector<Line> split_lines(std::string_view text, std::size_t most) {
  std::vector<Line> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size() && lines.size() < most;) {
    const Character character = character_at(text, at);
    std::size_t next = at + character.size;
    if (is_line_end(character.code)) {
      if (character.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back({begin, at, next});
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back({begin, text.size(), text.size()});
  return lines;
}

std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace butterfly::chat
