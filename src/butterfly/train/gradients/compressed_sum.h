// Packed reductions: each rank sends its values of every part of a bucket, packed, to the part's owner, who sums in
// fp32 in rank order and sends the sum to all, packed as well. Every rank unpacks what the owner sent, the owner too,
// so all end with the same bits. For a BucketReducer, whose threads are as in its header.
//
// Both ways are packed, since the way back is half of the bytes. What that leaves out of the sum is residual by the
// owner alone, in its own residual; and because an owner's own values of its part do not travel and so leave nothing
// out, one array as long as the gradients serves: on other ranks' parts it holds what this rank's values lost, on its
// own part what the sum lost. Either is an amount of gradient that this rank still has to deliver, so parts may change
// owners. A step that a lost rank ends leaves residuals as far as it came: what its buckets delivered is not in any
// sum, at most the rounding of one step. The sums of a run plus all ranks' residuals are the sum of all gradients, but
// for the rounding of fp32.
#pragma once

#include <memory>

#include "butterfly/train/gradients/bucket_reducer.h"

namespace butterfly {

struct CompressedOptions {
  GradientCompression method = GradientCompression::kAuto;  // not kOff
  std::int64_t bucket_bytes = 0;                            // those of the BucketReducer
  Isa isa = Isa::kReference;
};

/// `collectives` is borrowed. Errors: kNoMemory for the residuals.
Result<std::unique_ptr<BucketSum>> make_compressed_sum(Collectives& collectives, std::span<float> gradients,
                                                       const CompressedOptions& options);

}  // namespace butterfly
