// The canonical sum of gradients: a binary tree whose leaves are a step's micro-batches, by number. A node adds its
// left half, then its right; halves beyond the last micro-batch drop out. A rank that holds consecutive leaves adds the
// maximal subtrees among them, and a rank that holds all subtrees adds the rest: the same bits, however leaves are
// divided. A GradientTree belongs to one thread at a time; different ranges of elements may be used by different
// threads.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/model/core/parameters.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "butterfly/trace/held.h"
#include "butterfly/train/gradients/reducer.h"

namespace butterfly {

/// Leaves [first, first + count): count is a power of two that divides first.
struct Subtree {
  int first = 0;
  int count = 1;
  friend bool operator==(const Subtree&, const Subtree&) = default;
};

/// The largest subtrees that make up leaves [first, last), ascending.
std::vector<Subtree> maximal_subtrees(int first, int last);

/// How many subtrees are held at most while leaves [first, last) are taken one by one.
std::size_t held_at_most(int first, int last);

struct SubtreeSum {
  Subtree subtree{};
  std::span<float> values{};
};

/// The sum of all leaves from the sums of subtrees that make them up, ascending: in the values of one of them, which is
/// returned; the others are scratch afterwards. At least one.
std::span<float> fold_subtrees(const std::vector<SubtreeSum>& sums);

/// The same leaf by leaf: `stack` holds the maximal subtrees of the leaves so far, ascending. A new leaf joins those
/// that it completes, and the sum is where the leaf was.
void push_leaf(std::vector<SubtreeSum>& stack, const SubtreeSum& leaf);
/// What is left has no right sibling: the sum of all. At least one.
std::span<float> fold_stack(std::vector<SubtreeSum>& stack);

/// The last of those leaves are the last of all.
enum class LeavesLeft : std::uint8_t { kSome, kNone };

/// Takes `leaves` from number `first` on, values of `range` of the flat gradients that are scratch afterwards, into
/// what `held`, arrays as long as those, hold of it: a subtree each. After the last leaf the sum is in `gradients`.
void add_leaves(const std::vector<AlignedBuffer>& held, std::span<float> gradients, ParameterRange range,
                const std::vector<std::span<float>>& leaves, int first, LeavesLeft left);

/// Calls `work` for one block after the other: so small that what is added to it several times stays in the cache.
void in_blocks(WorkRange range, const std::function<void(WorkRange)>& work);

/// Of a zone in which `elements` floats are added to others.
trace::Work sum_work(std::size_t elements);

/// into += from.
void add_to(std::span<float> into, std::span<const float> from);

/// The leaves of one rank. The last leaf is not moved: its subtree is completed range by range, where it is.
class GradientTree {
 public:
  /// `team` is borrowed and may be null.
  GradientTree(std::span<float> gradients, ThreadTeam* team) : gradients_(gradients), team_(team) {}

  /// Makes room. Errors: kNoMemory.
  Status begin(const MicroBatches& share);

  /// Where the next leaf belongs, as long as the gradients: these, or memory of the tree. Its values are what was there
  /// before.
  std::span<float> leaf() const;

  /// leaf() is the next leaf, and not the last.
  void take();

  /// The maximal subtrees of the share, ascending; the last is the one in the gradients.
  const std::vector<Subtree>& subtrees() const { return subtrees_; }

  /// With all leaves but the last taken, and the last in the gradients of `range`: the sums of subtrees() there.
  std::vector<SubtreeSum> complete(ParameterRange range);

 private:
  bool completes_a_subtree() const;
  std::span<float> buffer(std::size_t index) const;
  void parallel(const std::function<void(WorkRange)>& work) const;

  std::span<float> gradients_;
  ThreadTeam* team_;
  MicroBatches share_{};
  int next_ = 0;  // leaf
  std::vector<Subtree> held_;
  std::vector<Subtree> subtrees_;
  std::vector<trace::Held> held_memory_;  // of buffers_
  std::vector<AlignedBuffer> buffers_;    // each as long as the gradients; held_[i] is in the i-th
};

}  // namespace butterfly
