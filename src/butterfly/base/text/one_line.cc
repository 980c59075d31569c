#include "butterfly/base/text/one_line.h"

#include <cstddef>
#include <cstdint>

namespace butterfly {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t size = 0;  // bytes; 0: none begins here
};

/// The UTF-8 character that `text` begins with, which is not ASCII.
Character first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return {};
  std::uint32_t code = lead & (0xFFu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0u) != 0x80u) return {};
    code = (code << 6) | (next & 0x3Fu);
  }
  const std::uint32_t least = size == 4 ? 0x10000 : size == 3 ? 0x800 : 0x80;
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < least || code > 0x10FFFF || surrogate ? Character{} : Character{code, size};
}

bool steers(std::uint32_t code) {
  const bool control = code < 0xA0;
  const bool direction = code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
                         (code >= 0x2066 && code <= 0x2069) || code == 0x061C;
  return control || direction || code == 0x2028 || code == 0x2029;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    std::size_t size = 1;
    if (byte == '\n' || byte == '\t') {
      result += ' ';
    } else if (byte < 0x80) {
      result += byte >= 0x20 && byte != 0x7F ? text[0] : '?';
    } else {
      const Character character = first_of(text);
      if (character.size > 0) size = character.size;
      result += character.size > 0 && !steers(character.code) ? text.substr(0, size) : std::string_view("?");
    }
    text.remove_prefix(size);
  }
  return result;
}

}  // namespace butterfly
