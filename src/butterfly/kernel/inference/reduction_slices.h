// Canonical slices: a matmul whose reduced dimension may be cut over nodes (attention output, MLP down) is defined as
// up to kReductionSlices partial sums over fixed slices, added in a fixed binary tree. The slices depend on the model
// alone, so n nodes that hold whole slices add the same numbers in the same order as one. Plain values, thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <numeric>
#include <vector>

#include "butterfly/tensor/dtype.h"

namespace butterfly {

inline constexpr int kReductionSlices = 8;

/// Consecutive canonical slices: what one member of a tensor group computes of attention and MLP.
struct SliceRange {
  int first = 0;
  int last = kReductionSlices;
  int count() const { return last - first; }
  bool whole() const { return first == 0 && last == kReductionSlices; }
  friend auto operator<=>(const SliceRange&, const SliceRange&) = default;
};

/// The fewest runs of 1, 2, 4 or 8 slices that make up `slices` and are nodes of the tree in which slices are added:
/// a member that holds `slices` can add each of them up alone. Ascending.
inline std::vector<SliceRange> subtrees(const SliceRange& slices) {
  std::vector<SliceRange> nodes;
  for (int at = slices.first; at < slices.last; at = nodes.back().last) {
    int size = 1;
    while (at % (2 * size) == 0 && at + 2 * size <= slices.last) size *= 2;
    nodes.push_back({at, at + size});
  }
  return nodes;
}

class SliceBorders {
 public:
  /// One slice over [0, cols).
  static SliceBorders single(std::int64_t cols) {
    SliceBorders borders;
    borders.count_ = 1;
    borders.begin_[1] = static_cast<int>(cols);
    return borders;
  }

  /// kReductionSlices slices of [0, cols), as even as whole units allow; a unit is `unit` elements rounded up to a
  /// common multiple with the quantisation block (a head for attention output, 1 for the MLP). Some slices may be
  /// empty.
  static SliceBorders canonical(std::int64_t cols, std::int64_t unit) {
    const std::int64_t step = std::lcm(unit, static_cast<std::int64_t>(kQuantBlock));
    const std::int64_t units = (cols + step - 1) / step;
    SliceBorders borders;
    borders.count_ = kReductionSlices;
    for (int slice = 0; slice <= kReductionSlices; ++slice) {
      const std::int64_t at = units * slice / kReductionSlices * step;
      borders.begin_[static_cast<std::size_t>(slice)] = static_cast<int>(at < cols ? at : cols);
    }
    return borders;
  }

  /// kReductionSlices slices of `count` things, as even as whole ones allow. Some may be empty.
  static SliceBorders even(std::int64_t count) {
    SliceBorders borders;
    borders.count_ = kReductionSlices;
    for (int slice = 0; slice <= kReductionSlices; ++slice) {
      borders.begin_[static_cast<std::size_t>(slice)] = static_cast<int>(count * slice / kReductionSlices);
    }
    return borders;
  }

  /// The slices of one node of the tree, of a matrix that holds the columns from `first_col` on.
  SliceBorders node(const SliceRange& slices, int first_col) const {
    SliceBorders borders;
    borders.count_ = slices.count();
    for (int i = 0; i <= slices.count(); ++i)
      borders.begin_[static_cast<std::size_t>(i)] = at(slices.first + i) - first_col;
    return borders;
  }

  int count() const { return count_; }
  const int* data() const { return begin_.data(); }

  /// Where `slice` begins, in columns; at(count()) is where the last one ends.
  int at(int slice) const { return begin_[static_cast<std::size_t>(slice)]; }

  /// Columns of all slices together.
  int cols() const { return at(count_) - at(0); }

 private:
  std::array<int, kReductionSlices + 1> begin_{};
  int count_ = 0;
};

}  // namespace butterfly
