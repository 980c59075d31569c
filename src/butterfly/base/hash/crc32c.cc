#include "butterfly/base/hash/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace butterfly {
namespace {

constexpr std::array<std::uint32_t, 256> kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = value;
  }
  return table;
}();

#if defined(__x86_64__)
// The instruction takes three cycles and one can begin in each: three runs of bytes side by side.
constexpr std::size_t kRunBytes = 1024;

/// What `crc` becomes over kRunBytes zeros: it is linear, so the images of its four bytes add up.
class RunOfZeros {
 public:
  constexpr RunOfZeros() {
    std::array<std::uint32_t, 32> images{};
    for (std::size_t bit = 0; bit < images.size(); ++bit) {
      images[bit] = std::uint32_t{1} << bit;
      for (std::size_t i = 0; i < kRunBytes; ++i) images[bit] = (images[bit] >> 8) ^ kTable[images[bit] & 0xff];
    }
    for (std::size_t byte = 0; byte < 4; ++byte) {
      for (std::size_t value = 0; value < 256; ++value) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) images_[byte][value] ^= images[8 * byte + bit];
        }
      }
    }
  }
  constexpr std::uint32_t operator()(std::uint32_t crc) const {
    return images_[0][crc & 0xff] ^ images_[1][crc >> 8 & 0xff] ^ images_[2][crc >> 16 & 0xff] ^ images_[3][crc >> 24];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> images_{};
};
constexpr RunOfZeros kOverZeros;

std::uint64_t eight_at(const std::byte* at) {
  std::uint64_t eight = 0;
  std::memcpy(&eight, at, sizeof(eight));
  return eight;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(ByteSpan bytes, std::uint32_t before) {
  std::uint64_t crc = ~before;
  for (; bytes.size() >= 3 * kRunBytes; bytes = bytes.subspan(3 * kRunBytes)) {
    const std::byte* at = bytes.data();
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kRunBytes; i += 8) {
      crc = _mm_crc32_u64(crc, eight_at(at + i));
      second = _mm_crc32_u64(second, eight_at(at + kRunBytes + i));
      third = _mm_crc32_u64(third, eight_at(at + 2 * kRunBytes + i));
    }
    crc = kOverZeros(kOverZeros(static_cast<std::uint32_t>(crc)) ^ static_cast<std::uint32_t>(second)) ^ third;
  }
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) crc = _mm_crc32_u64(crc, eight_at(bytes.data()));
  auto last = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes) last = _mm_crc32_u8(last, std::to_integer<unsigned char>(byte));
  return ~last;
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(ByteSpan bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(ByteSpan bytes, std::uint32_t before) {
#if defined(__x86_64__)
  if (has_instruction()) return crc32c_sse42(bytes, before);
#endif
  return crc32c_portable(bytes, before);
}

}  // namespace butterfly
