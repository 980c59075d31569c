// Little-endian numbers in bytes, reading from untrusted ones with bounds checks, and the sizes arithmetic that goes
// with it. ByteReader borrows its span. Not thread-safe; make one per reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace butterfly {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

/// a * b, or nothing when it does not fit into 64 bits.
[[nodiscard]] inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// a + b, or nothing when it does not fit into 64 bits.
[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// The lowest `count` bytes of `value`, at most 8, to bytes[at] and after it, which the caller knows to be there.
inline void store_number(MutableByteSpan bytes, std::size_t at, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}
/// What store_number() wrote.
inline std::uint64_t load_number(ByteSpan bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}

class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }

  /// The next sizeof(T) bytes as a T, or nothing at the end.
  template <typename T>
  [[nodiscard]] std::optional<T> read() {
    if (remaining() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  /// The next `count` bytes, or nothing when fewer remain.
  [[nodiscard]] std::optional<ByteSpan> take(std::uint64_t count) {
    if (count > remaining()) return std::nullopt;
    ByteSpan result = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return result;
  }

 private:
  ByteSpan bytes_;
  std::size_t position_ = 0;
};

inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace butterfly
