// Canonical lanes: a product whose reduced dimension may be cut over nodes (attention output, MLP down) is defined as
// up to kLanes partial sums over fixed slices, added in a fixed binary tree. The slices depend on the model alone, so
// n nodes that hold whole lanes add the same numbers in the same order as one. Plain values, thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <numeric>
#include <vector>

#include "butterfly/tensor/dtype.h"

namespace butterfly {

inline constexpr int kLanes = 8;

/// Consecutive canonical lanes: what one member of a tensor group computes of attention and MLP.
struct LaneRange {
  int first = 0;
  int last = kLanes;
  int count() const { return last - first; }
  bool whole() const { return first == 0 && last == kLanes; }
  friend auto operator<=>(const LaneRange&, const LaneRange&) = default;
};

/// The fewest runs of 1, 2, 4 or 8 lanes that make up `lanes` and are nodes of the tree in which lanes are added:
/// whoever holds `lanes` can add each of them up alone. Ascending.
inline std::vector<LaneRange> subtrees(const LaneRange& lanes) {
  std::vector<LaneRange> nodes;
  for (int at = lanes.first; at < lanes.last; at = nodes.back().last) {
    int size = 1;
    while (at % (2 * size) == 0 && at + 2 * size <= lanes.last) size *= 2;
    nodes.push_back({at, at + size});
  }
  return nodes;
}

class LaneBorders {
 public:
  /// One lane over [0, cols).
  static LaneBorders single(std::int64_t cols) {
    LaneBorders borders;
    borders.count_ = 1;
    borders.begin_[1] = static_cast<int>(cols);
    return borders;
  }

  /// kLanes slices of [0, cols), as even as whole units allow; a unit is `unit` elements rounded up to a common
  /// multiple with the quantisation block (a head for attention output, 1 for the MLP). Some lanes may be empty.
  static LaneBorders canonical(std::int64_t cols, std::int64_t unit) {
    const std::int64_t step = std::lcm(unit, static_cast<std::int64_t>(kQuantBlock));
    const std::int64_t units = (cols + step - 1) / step;
    LaneBorders borders;
    borders.count_ = kLanes;
    for (int lane = 0; lane <= kLanes; ++lane) {
      const std::int64_t at = units * lane / kLanes * step;
      borders.begin_[static_cast<std::size_t>(lane)] = static_cast<int>(at < cols ? at : cols);
    }
    return borders;
  }

  /// The lanes of one node of the tree, of a matrix that holds the columns from `first_col` on.
  LaneBorders node(const LaneRange& lanes, int first_col) const {
    LaneBorders borders;
    borders.count_ = lanes.count();
    for (int i = 0; i <= lanes.count(); ++i)
      borders.begin_[static_cast<std::size_t>(i)] = at(lanes.first + i) - first_col;
    return borders;
  }

  int count() const { return count_; }
  const int* data() const { return begin_.data(); }

  /// Where `lane` begins, in columns; at(count()) is where the last one ends.
  int at(int lane) const { return begin_[static_cast<std::size_t>(lane)]; }

  /// Columns of all lanes together.
  int cols() const { return at(count_) - at(0); }

 private:
  std::array<int, kLanes + 1> begin_{};
  int count_ = 0;
};

}  // namespace butterfly
