#include "butterfly/text/grammar/code_points.h"

#include <algorithm>

namespace butterfly {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;
constexpr CodePointSet::Range kSurrogates{0xD800, 0xDFFF};

}  // namespace

CodePointSet CodePointSet::of(std::string_view characters) {
  CodePointSet set;
  for (const char c : characters) set.add(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
  return set;
}

void CodePointSet::add(char32_t first, char32_t last) {
  if (first < kSurrogates.first && last > kSurrogates.last) {
    add(first, kSurrogates.first - 1);
    return add(kSurrogates.last + 1, last);
  }
  if (first >= kSurrogates.first && first <= kSurrogates.last) first = kSurrogates.last + 1;
  if (last >= kSurrogates.first && last <= kSurrogates.last) last = kSurrogates.first - 1;
  if (first > last) return;
  auto begin = std::ranges::find_if(ranges_, [&](const Range& range) { return range.last + 1 >= first; });
  auto end = begin;
  while (end != ranges_.end() && end->first <= last + 1) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
    ++end;
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, {first, last});
}

void CodePointSet::add(const CodePointSet& other) {
  for (const Range& range : other.ranges_) add(range.first, range.last);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet result;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) result.add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) result.add(next, kLastCodePoint);
  return result;
}

CodePointSet CodePointSet::without(const CodePointSet& other) const {
  CodePointSet taken = complement();
  taken.add(other);
  return taken.complement();
}

bool CodePointSet::contains(char32_t c) const {
  return std::ranges::any_of(ranges_, [&](const Range& range) { return range.first <= c && c <= range.last; });
}

}  // namespace butterfly
