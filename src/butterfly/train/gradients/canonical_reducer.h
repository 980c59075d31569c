// Sums whose bits do not depend on the number of ranks: each rank adds the maximal subtrees of its micro-batches, they
// go to the owner of each part of a bucket, who folds the rest of the tree, and the parts are gathered
// (gradient_tree.h). For a BucketReducer, whose threads are as in its header.
#pragma once

#include <memory>

#include "butterfly/train/gradients/bucket_reducer.h"

namespace butterfly {

/// `collectives` and `team` are borrowed; `team` may be null.
std::unique_ptr<BucketSum> make_canonical_sum(Collectives& collectives, std::span<float> gradients, ThreadTeam* team);

}  // namespace butterfly
