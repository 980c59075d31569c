// What a worker does when a coordinator makes it a rank of a training run: implemented by the layer that trains.
#pragma once

#include <memory>
#include <stop_token>

#include "butterfly/cluster/control/node_status.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// A rank's connections; all are closed when its session ends.
struct RankConnections {
  SessionId session{};
  std::shared_ptr<Channel> leader{};  // from rank 0; shared, since the session closes it
  Listener& members;                  // where the connections of lower ranks arrive
  NodeAccess access{};                // to higher ranks
};

class RankHost {
 public:
  virtual ~RankHost() = default;

  /// Takes part in a run until rank 0 says that it is over. Called by a thread of its own, for one run at a time.
  /// Returns soon after `stop` is requested: rank 0 is gone, or this worker leaves. Errors: those that end the run
  /// here.
  virtual Status take_part(const RankConnections& connections, std::stop_token stop) = 0;

  /// Of the run that it takes part in, and the run's epoch; from any thread.
  virtual RankStatus status() const = 0;
  virtual Epoch epoch() const = 0;

  /// Seconds of computing in all runs, from any thread.
  virtual double computing_s() const = 0;
};

}  // namespace butterfly
