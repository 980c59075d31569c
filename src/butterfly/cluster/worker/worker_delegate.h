// What a worker does with its assignments of one epoch: implemented by the layer that knows models. load() of all,
// serve() of each at once, every one from its own thread, and unload() of all follow each other and never overlap with
// those of another epoch. A delegate may keep weights between epochs: the next is often nearly the same.
#pragma once

#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "butterfly/cluster/control/assignment.h"
#include "butterfly/cluster/worker/stage_links.h"
#include "butterfly/cluster/worker/weights.h"
#include "butterfly/plan/description/exchange_times.h"

namespace butterfly {

class WorkerDelegate {
 public:
  virtual ~WorkerDelegate() = default;

  /// Builds the stages, at least one; gives the bytes of memory that each holds. `weights` is valid during the call.
  /// Should return soon after `stop` is requested (the epoch ended). The error goes to the coordinator as it is.
  virtual Result<std::vector<std::uint64_t>> load(std::span<const Assignment> assignments, WeightFetcher& weights,
                                                  std::stop_token stop) = 0;

  /// Loads what a later epoch will need, from a thread of its own, while the present one may be served; never
  /// overlaps with load(). What fails here is not lost: load() will try again. Errors: kNoMemory where there is no room
  /// for both.
  virtual Status prepare(std::span<const Assignment> assignments, WeightFetcher& weights, std::stop_token stop) = 0;

  /// Meets the other members of the tensor group of one of them, who all have loaded: after load(), before serve(), in
  /// the order of the pipeline. Gives what they measured of their exchanges; nothing unless a delegate does.
  virtual Result<ExchangeTimes> join_group(const Assignment& /*assignment*/, Exchange& /*exchange*/) {
    return ExchangeTimes{};
  }

  /// Runs the stage of one of them until a channel closes or `stop` is requested. Only after load() succeeded.
  virtual Status serve(const Assignment& assignment, const StageLinks& links, std::stop_token stop) = 0;

  /// The weights of the model file at this path, for other workers; called from any thread. Errors: those of reading
  /// it.
  virtual Result<WeightProvider> open_weights(const std::string& path) const {
    return make_error(ErrorCode::kUnsupported, "{} cannot be given to other workers", path);
  }

  /// What serve() has done since the delegate was made; from any thread.
  virtual StageWork done() const { return {}; }

  /// Frees what only these assignments needed; called after every load(), successful or not.
  virtual void unload() = 0;
};

/// Serves all that a node has loaded, each on a thread of its own, and returns when the last has ended. `on_end` is
/// called by each thread with the place of its assignment; the first call has to end the others. Recordings name the
/// threads after `node`, where a process has several, and their stages.
void serve_all(WorkerDelegate& delegate, std::span<const Assignment> assignments, std::span<const StageLinks> links,
               const std::stop_token& stop, const std::function<void(std::size_t, Status)>& on_end,
               const std::string& node = {});

}  // namespace butterfly
