// Canonical slices: a matmul whose reduced dimension may be cut over nodes (attention output, MLP down) is defined as
// up to kReductionSlices partial sums over fixed slices, added in a fixed binary tree. The slices depend on the model
// alone, so n nodes that hold whole slices add the same numbers in the same order as one. Plain values, thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "butterfly/kernel/inference/kernels.h"

namespace butterfly {

/// Of an expert's down: members hold whole experts, so that finer slices would serve nobody.
inline constexpr int kExpertSlices = 8;

/// Consecutive canonical slices: what one member of a tensor group computes of attention and MLP.
struct SliceRange {
  int first = 0;
  int last = kReductionSlices;
  int count() const { return last - first; }
  bool whole() const { return first == 0 && last == kReductionSlices; }
  friend auto operator<=>(const SliceRange&, const SliceRange&) = default;
};

/// The fewest runs of slices that make up `slices` and are nodes of the tree in which slices are added: their sizes are
/// powers of two. A member that holds `slices` can add each of them up alone. Ascending.
std::vector<SliceRange> subtrees(const SliceRange& slices);

class SliceBorders {
 public:
  /// One slice over [0, cols).
  static SliceBorders single(std::int64_t cols);

  /// `slices` slices of [0, cols), as even as whole units allow; a unit is `unit` elements (a head for attention
  /// output, 1 for the MLP) rounded up to a common multiple with the quantisation block, or with two of them where
  /// slices would be narrower than that. Where there are fewer units than slices, some slices are empty. `slices` is a
  /// power of two, at most kReductionSlices.
  static SliceBorders canonical(std::int64_t cols, std::int64_t unit, int slices = kReductionSlices);

  /// kReductionSlices slices of `count` things, as even as whole ones allow. Some may be empty.
  static SliceBorders even(std::int64_t count);

  /// The slices of one node of the tree, of a matrix that holds the columns from `first_col` on.
  SliceBorders node(const SliceRange& slices, int first_col) const;

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
