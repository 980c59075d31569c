#include "butterfly/text/utf8.h"

#include <cstring>

namespace butterfly {

namespace {

/// The range of the second byte is what excludes overlong forms, surrogates and values above U+10FFFF.
struct LeadByte {
  int size = 0;  // 0: no character starts like this
  unsigned char second_first = 0x80;
  unsigned char second_last = 0xBF;
};

LeadByte lead_byte(unsigned char lead) {
  if (lead < 0xC2) return {};
  if (lead < 0xE0) return {.size = 2};
  if (lead == 0xE0) return {.size = 3, .second_first = 0xA0};
  if (lead == 0xED) return {.size = 3, .second_last = 0x9F};
  if (lead < 0xF0) return {.size = 3};
  if (lead == 0xF0) return {.size = 4, .second_first = 0x90};
  if (lead < 0xF4) return {.size = 4};
  if (lead == 0xF4) return {.size = 4, .second_last = 0x8F};
  return {};
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](int i) { return static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};
  const LeadByte expected = lead_byte(lead);
  if (expected.size == 0) return {Kind::kInvalid, 1, 0};
  char32_t code_point = lead & (0x7Fu >> expected.size);
  for (int i = 1; i < expected.size; ++i) {
    if (static_cast<std::size_t>(i) == bytes.size()) return {Kind::kIncomplete, i, 0};
    const unsigned char first = i == 1 ? expected.second_first : 0x80;
    const unsigned char last = i == 1 ? expected.second_last : 0xBF;
    if (byte(i) < first || byte(i) > last) return {Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
  }
  return {Kind::kCharacter, expected.size, code_point};
}

namespace {

/// The size of the character of two or three bytes at the front, where none of its bytes has a range of its own; else
/// 0.
std::size_t plain_character(const char* bytes, std::size_t size) {
  const auto continues = [&](std::size_t i) { return (static_cast<unsigned char>(bytes[i]) & 0xC0) == 0x80; };
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (lead >= 0xC2 && lead < 0xE0) return size >= 2 && continues(1) ? 2 : 0;
  const bool three = lead > 0xE0 && lead < 0xF0 && lead != 0xED;
  return three && size >= 3 && continues(1) && continues(2) ? 3 : 0;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view bytes) {
  std::size_t position = 0;
  while (position < bytes.size()) {
    while (bytes.size() - position >= 8) {
      std::uint64_t eight = 0;
      std::memcpy(&eight, bytes.data() + position, 8);
      if ((eight & 0x8080808080808080u) != 0) break;
      position += 8;
    }
    while (position < bytes.size() && (bytes[position] & 0x80) == 0) ++position;
    while (position < bytes.size() && (bytes[position] & 0x80) != 0) {
      std::size_t size = plain_character(bytes.data() + position, bytes.size() - position);
      if (size == 0) {
        const Utf8Step step = utf8_step(bytes.substr(position));
        if (step.kind != Utf8Step::Kind::kCharacter) return position;
        size = static_cast<std::size_t>(step.size);
      }
      position += size;
    }
  }
  return std::nullopt;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t value) { text.push_back(static_cast<char>(static_cast<unsigned char>(value))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace butterfly
