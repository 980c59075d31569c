// GPT-2's alphabet, in which pieces of byte-level BPE are spelled: one visible character for each byte. Immutable,
// thread-safe.
#pragma once

#include <array>
#include <string>
#include <unordered_map>

#include "butterfly/text/utf8.h"

namespace butterfly {

/// A byte that is a printable Latin-1 character stands for itself, the other 68 are U+0100 onwards.
struct ByteAlphabet {
  std::array<char32_t, 256> code_point{};
  std::array<std::string, 256> spelling;
  std::unordered_map<char32_t, char> byte_of;

  ByteAlphabet() {
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
      code_point[byte] = printable ? byte : next++;
      append_utf8(spelling[byte], code_point[byte]);
      byte_of.emplace(code_point[byte], static_cast<char>(static_cast<unsigned char>(byte)));
    }
  }
};

inline const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

}  // namespace butterfly
