// The fields of a protobuf message, one after another, without its schema: every length is checked against what is
// left. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "butterfly/base/result.h"

namespace butterfly {

struct ProtobufField {
  std::uint32_t number = 0;
  std::uint64_t value = 0;  // of a number
  std::string_view bytes;   // of a text or an inner message

  bool flag() const { return value != 0; }
  float as_float() const {
    const auto bits = static_cast<std::uint32_t>(value);
    float result = 0;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }
};

class ProtobufFields {
 public:
  explicit ProtobufFields(std::string_view message) : rest_(message), size_(message.size()) {}

  /// Nothing at the end. Errors: kBadData for what is no field, saying where.
  Result<std::optional<ProtobufField>> next() {
    if (rest_.empty()) return std::optional<ProtobufField>();
    ProtobufField field;
    std::uint64_t key = 0;
    if (!varint(key) || (key >> 3) == 0 || (key >> 3) > 0x1FFFFFFF) return broken();
    field.number = static_cast<std::uint32_t>(key >> 3);
    switch (key & 7) {
      case 0:
        if (!varint(field.value)) return broken();
        return std::optional<ProtobufField>(field);
      case 1:
        return fixed(8, field);
      case 2: {
        std::uint64_t size = 0;
        if (!varint(size) || size > rest_.size()) return broken();
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return std::optional<ProtobufField>(field);
      }
      case 5:
        return fixed(4, field);
      default:
        return broken();
    }
  }

 private:
  bool varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  Result<std::optional<ProtobufField>> fixed(std::size_t size, ProtobufField field) {
    if (rest_.size() < size) return broken();
    std::memcpy(&field.value, rest_.data(), size);  // little-endian, as this project is throughout
    rest_.remove_prefix(size);
    return std::optional<ProtobufField>(field);
  }

  tl::unexpected<Error> broken() const {
    return make_error(ErrorCode::kBadData, "a message of {} bytes is broken at byte {}", size_, size_ - rest_.size());
  }

  std::string_view rest_;
  std::size_t size_;
};

}  // namespace butterfly
