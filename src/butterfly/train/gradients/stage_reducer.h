// Gradients of a rank that computes all micro-batches of its part of the model: a stage of a pipeline. They add up
// where they are, or in the canonical tree (deterministic), piece by piece (GradientPiece); at the end of a step
// mirrors get the sums. Used by the training thread.
#pragma once

#include <memory>

#include "butterfly/train/gradients/reducer.h"

namespace butterfly {

/// `options.shards` and `options.collectives` are there. Errors: kNoMemory.
Result<std::unique_ptr<GradientReducer>> make_stage_reducer(const ReducerOptions& options);

}  // namespace butterfly
