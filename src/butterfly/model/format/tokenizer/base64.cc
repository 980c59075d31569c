#include "butterfly/model/format/tokenizer/base64.h"

#include <array>
#include <cstdint>

namespace butterfly {
namespace {

constexpr std::array<std::int8_t, 256> make_digits() {
  std::array<std::int8_t, 256> digits{};
  for (auto& digit : digits) digit = -1;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::int8_t>(i);
  }
  return digits;
}
constexpr std::array<std::int8_t, 256> kBase64Digits = make_digits();

}  // namespace

Result<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int digit = kBase64Digits[static_cast<unsigned char>(text[i])];
    if (digit < 0) {
      return make_error(ErrorCode::kBadData, "base64 has the byte 0x{:02X} at offset {}",
                        static_cast<unsigned char>(text[i]), i);
    }
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>((bits >> count) & 0xFF)));
  }
  return bytes;
}

}  // namespace butterfly
