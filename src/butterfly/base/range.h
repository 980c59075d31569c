// The half-open range [begin, end) of indices: rows, columns, heads, layers. Plain values, thread-safe.
#pragma once

#include <cstdint>

namespace butterfly {

template <typename Index>
struct Range {
  Index begin{};
  Index end{};
  constexpr Index size() const { return end - begin; }
  constexpr bool contains(Index index) const { return index >= begin && index < end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

using IndexRange = Range<std::int64_t>;

}  // namespace butterfly
