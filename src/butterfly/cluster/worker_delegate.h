// What a worker does with an assignment: implemented by the layer that knows models. load(), serve() and unload() of
// one assignment come from one thread, in this order, and never overlap with those of another. A delegate may keep
// weights between assignments: the next is often nearly the same.
#pragma once

#include <stop_token>

#include "butterfly/cluster/assignment.h"
#include "butterfly/cluster/stage_links.h"
#include "butterfly/cluster/weights.h"

namespace butterfly {

class WorkerDelegate {
 public:
  virtual ~WorkerDelegate() = default;

  /// Builds the stage; gives the bytes of memory that it holds. `weights` is valid during the call. Should return soon
  /// after `stop` is requested (the epoch ended). The error goes to the coordinator as it is.
  virtual Result<std::uint64_t> load(const Assignment& assignment, WeightFetcher& weights, std::stop_token stop) = 0;

  /// Loads what a later assignment will need, from a thread of its own, while the present one may be served; never
  /// overlaps with load(). What fails here is not lost: load() will try again. Errors: kNoMemory where there is no room
  /// for both.
  virtual Status prepare(const Assignment& assignment, WeightFetcher& weights, std::stop_token stop) = 0;

  /// Runs the stage until a channel closes or `stop` is requested. Only after load() succeeded.
  virtual Status serve(const Assignment& assignment, const StageLinks& links, std::stop_token stop) = 0;

  /// The weights of the model file at this path, for other workers; called from any thread. Errors: those of reading
  /// it.
  virtual Result<WeightProvider> open_weights(const std::string& path) const {
    return make_error(ErrorCode::kUnsupported, "{} cannot be given to other workers", path);
  }

  /// What serve() has done since the delegate was made; from any thread.
  virtual StageWork done() const { return {}; }

  /// Frees what only the assignment needed; called after every load(), successful or not.
  virtual void unload() = 0;
};

}  // namespace butterfly
