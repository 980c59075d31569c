// Sets of characters, as classes of regular expressions and grammars name them. Plain values, thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace butterfly {

/// Scalar values of Unicode: ranges that are sorted and do not touch, without surrogates.
class CodePointSet {
 public:
  struct Range {
    char32_t first = 0;
    char32_t last = 0;
    friend bool operator==(const Range&, const Range&) = default;
  };

  CodePointSet() = default;
  CodePointSet(char32_t first, char32_t last) { add(first, last); }

  static CodePointSet all() { return {0, 0x10FFFF}; }
  /// Each of these ASCII characters.
  static CodePointSet of(std::string_view characters);

  void add(char32_t first, char32_t last);
  void add(const CodePointSet& other);
  CodePointSet complement() const;
  CodePointSet without(const CodePointSet& other) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

}  // namespace butterfly
