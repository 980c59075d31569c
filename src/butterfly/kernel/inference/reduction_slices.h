// Canonical slices: a matmul whose reduced dimension may be cut over nodes (attention output, MLP down) is defined as
// up to kReductionSlices partial sums over fixed slices, added in a fixed binary tree. The slices depend on the model
// alone, so n nodes that hold whole slices add the same numbers in the same order as one. Plain values, thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
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

/// Whether these are slices that there are: a run of them, or none.
inline bool is_run(const SliceRange& slices) {
  return 0 <= slices.first && slices.first <= slices.last && slices.last <= kReductionSlices;
}

/// What one member of a tensor group has of each layer: reduction slices (of heads, MLP, shared expert, vocabulary),
/// and a run of the slices of the experts, which is the same one where nothing else is said. One of the two may be
/// empty: a member can hold experts alone.
struct HeldSlices : SliceRange {
  SliceRange experts{};

  HeldSlices() = default;
  HeldSlices(const SliceRange& both) : SliceRange(both), experts(both) {}
  HeldSlices(int first_slice, int last_slice) : HeldSlices(SliceRange{.first = first_slice, .last = last_slice}) {}
  HeldSlices(const SliceRange& slices, const SliceRange& of_experts) : SliceRange(slices), experts(of_experts) {}

  const SliceRange& slices() const { return *this; }
  bool whole() const { return SliceRange::whole() && experts.whole(); }
  bool experts_follow() const { return experts == slices(); }
  bool empty() const { return count() <= 0 && experts.count() <= 0; }
  /// Whether both begin where those of the member before end, and do not end before.
  bool follows(const HeldSlices& before) const {
    return first == before.last && last >= first && experts.first == before.experts.last &&
           experts.last >= experts.first;
  }
  bool ends() const { return last == kReductionSlices && experts.last == kReductionSlices; }
  /// Of the member that would come before the first one.
  static HeldSlices none() { return {0, 0}; }

  /// "slices 3-5", with "expert slices 0-7" where the experts do not follow them; empty for a whole stage.
  std::string text() const;

  friend auto operator<=>(const HeldSlices&, const HeldSlices&) = default;
  friend bool operator==(const HeldSlices&, const HeldSlices&) = default;
  friend bool operator==(const HeldSlices& a, const SliceRange& both) {
    return a.slices() == both && a.experts == both;
  }
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
