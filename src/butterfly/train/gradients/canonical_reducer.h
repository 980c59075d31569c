// Sums whose bits do not depend on the number of ranks: each rank adds the maximal subtrees of its micro-batches, they
// go to the owner of each part of a bucket, who folds the rest of the tree, and the parts are gathered
// (gradient_tree.h). For a BucketReducer, whose threads are as in its header.
#pragma once

#include <memory>

#include "butterfly/train/gradients/bucket_reducer.h"
#include "butterfly/train/sharding/shard_map.h"

namespace butterfly {

struct CanonicalSumOptions {
  ThreadTeam* team = nullptr;        // borrowed; null: the calling thread
  const ShardMap* shards = nullptr;  // borrowed. The buckets are its, backward, and each rank keeps the sum of its part
                                     // alone; null: all ranks get all of it
};

/// `collectives` is borrowed.
std::unique_ptr<BucketSum> make_canonical_sum(Collectives& collectives, std::span<float> gradients,
                                              const CanonicalSumOptions& options);

}  // namespace butterfly
