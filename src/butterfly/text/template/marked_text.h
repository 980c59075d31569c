// Text that remembers, byte by byte, who wrote it: the template or a message. Control tokens count only where the
// template wrote all of them. Plain values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace butterfly {

/// Who wrote a byte.
enum class TextOrigin : char { kTemplate = 0, kMessage = 1 };

struct MarkedText {
  std::string bytes;
  std::string marks;  // a TextOrigin for each byte; empty: the template wrote all

  MarkedText() = default;
  explicit MarkedText(std::string text) : bytes(std::move(text)) {}
  explicit MarkedText(std::string_view text) : bytes(text) {}
  explicit MarkedText(const char* text) : bytes(text) {}
  MarkedText(std::string text, TextOrigin origin) : bytes(std::move(text)) {
    if (origin != TextOrigin::kTemplate) marks.assign(bytes.size(), static_cast<char>(origin));
  }

  std::size_t size() const { return bytes.size(); }
  bool empty() const { return bytes.empty(); }
  /// What it occupies in memory.
  std::size_t cost() const { return bytes.size() + marks.size(); }
  char mark(std::size_t at) const { return marks.empty() ? '\0' : marks[at]; }

  void append(std::string_view text, char mark = '\0') {
    if (mark != '\0' && marks.empty()) marks.assign(bytes.size(), '\0');
    bytes += text;
    if (!marks.empty() || mark != '\0') marks.resize(bytes.size(), mark);
  }

  void append(const MarkedText& other) { append(other, 0, other.size()); }

  /// The bytes [begin, end) of `other`.
  void append(const MarkedText& other, std::size_t begin, std::size_t end) {
    if (other.marks.empty()) return append(std::string_view(other.bytes).substr(begin, end - begin));
    if (marks.empty()) marks.assign(bytes.size(), '\0');
    bytes.append(other.bytes, begin, end - begin);
    marks.append(other.marks, begin, end - begin);
  }

  MarkedText slice(std::size_t begin, std::size_t end) const {
    MarkedText part;
    part.append(*this, begin, end);
    return part;
  }
};

}  // namespace butterfly
