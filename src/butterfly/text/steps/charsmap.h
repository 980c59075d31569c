// SentencePiece's precompiled table of characters: sequences of bytes and what each becomes, in a double array (Darts).
// Comes out of a model file: every index is checked. Immutable after creation, thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

class Charsmap {
 public:
  /// Nothing is replaced.
  Charsmap() = default;

  /// Errors: kBadData where the sizes inside `blob` and its own disagree. An empty blob is an empty table.
  static Result<Charsmap> create(std::string_view blob);

  bool empty() const { return units_.empty(); }

  struct Match {
    std::size_t size = 0;  // bytes of the text; 0: none
    std::string_view replacement;
  };
  enum class Which : std::uint8_t { kLongest, kShortest };

  /// The longest or the shortest sequence that `text` starts with.
  Match match(std::string_view text, Which which) const;

  /// Whether no sequence begins with this byte of ASCII but those that go on beyond ASCII.
  bool is_settled(char byte) const { return settled_[static_cast<unsigned char>(byte)]; }

  /// Whether no sequence begins with this character beyond ASCII.
  bool is_settled(char32_t c) const { return c < kKnownMax && ((settled_characters_[c / 64] >> (c % 64)) & 1) != 0; }

  /// Whether every replacement is valid UTF-8.
  bool is_text() const { return is_text_; }

 private:
  static constexpr char32_t kKnownMax = 0x10000;

  void settle();
  void settle_characters();
  bool begins(std::string_view bytes) const;
  void check_replacements();

  std::vector<std::uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
  std::array<bool, 256> settled_{};
  std::vector<std::uint64_t> settled_characters_ = std::vector<std::uint64_t>(kKnownMax / 64);
  bool is_text_ = true;
};

}  // namespace butterfly
