// What a worker does with an assignment: implemented by the layer that knows models. All three calls of one assignment
// come from one thread, in this order, and never overlap with those of another assignment. A delegate may keep weights
// between assignments: the next is often nearly the same.
#pragma once

#include <stop_token>

#include "butterfly/cluster/assignment.h"
#include "butterfly/cluster/weights.h"
#include "butterfly/wire/channel.h"

namespace butterfly {

class WorkerDelegate {
 public:
  virtual ~WorkerDelegate() = default;

  /// Builds the stage; gives the bytes of memory that it holds. `weights` is valid during the call. Should return soon
  /// after `stop` is requested (the epoch ended). The error goes to the coordinator as it is.
  virtual Result<std::uint64_t> load(const Assignment& assignment, WeightFetcher& weights, std::stop_token stop) = 0;

  /// Runs the stage until a channel closes or `stop` is requested. Only after load() succeeded.
  virtual Status serve(const Assignment& assignment, Channel& input, Channel& output, std::stop_token stop) = 0;

  /// Frees what only the assignment needed; called after every load(), successful or not.
  virtual void unload() = 0;
};

}  // namespace butterfly
