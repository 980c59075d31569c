// One share of the work and where it runs: what strategies produce and plans consist of. Plain values, thread-safe.
#pragma once

#include "butterfly/kernel/inference/reduction_slices.h"

namespace butterfly {

/// One share of the work: blocks [first_layer, last_layer), and the embedding and LM head. The members of a tensor
/// group have the same of all these, and divide the slices of each.
struct StageAssignment {
  int first_layer = 0;
  int last_layer = 0;
  bool embedding = false;
  bool head = false;
  HeldSlices slices{};
  int layers() const { return last_layer - first_layer; }
  friend bool operator==(const StageAssignment&, const StageAssignment&) = default;
};

struct Share {
  int node = 0;
  StageAssignment work{};
  friend bool operator==(const Share&, const Share&) = default;
};

/// How many subtrees of the binary tree over kReductionSlices slices a run of slices consists of: what it sends to
/// others.
int subtree_count(const SliceRange& slices);

}  // namespace butterfly
