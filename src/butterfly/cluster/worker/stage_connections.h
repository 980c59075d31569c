// The data connections of a worker's assignment: from the stage before it, to the one after it, and to each other
// member of its tensor group; of two members the one with lower slices dials. All are in the session's hub, which
// closes them when the epoch ends. Not thread-safe.
#pragma once

#include <memory>

#include "butterfly/cluster/worker/channel_hub.h"
#include "butterfly/cluster/worker/stage_links.h"
#include "butterfly/cluster/worker/worker_server.h"

namespace butterfly {

class StageConnections {
 public:
  StageConnections(const WorkerOptions& options, const SessionId& session, ChannelHub& hub,
                   const Assignment& assignment)
      : options_(options), session_(session), hub_(hub), assignment_(assignment) {}

  /// All but the one from the stage before, which connects when it has got so far. Errors: those of connect_tcp();
  /// kUnavailable for a neighbour that does not connect in time.
  Status open(const std::stop_token& stop);

  /// Waits for the stage before, and then has everything.
  Result<StageLinks> complete();

  /// Tells the other members that this one has loaded. Errors: kUnavailable (one is gone).
  Status announce_loaded() const;
  /// Waits until all of them have said so: as long as it takes, since loading may, or until the channels are closed.
  /// Errors: kUnavailable, kProtocol.
  Status await_loaded() const;

  /// What the tensor group exchanges its sums with.
  Exchange* exchange() const { return exchange_.get(); }
  ExchangeEngine engine() const { return exchange_ ? exchange_->engine() : ExchangeEngine::kNone; }

 private:
  Result<std::shared_ptr<Channel>> dial(const std::string& address, const std::string& there, const std::string& here,
                                        const std::stop_token& stop);
  Result<std::shared_ptr<Channel>> wait_for(const std::string& what);
  Status open_group(const std::stop_token& stop);

  const WorkerOptions& options_;
  const SessionId& session_;
  ChannelHub& hub_;
  const Assignment& assignment_;
  std::shared_ptr<Channel> input_, output_;      // all channels are also the hub's
  std::vector<std::shared_ptr<Channel>> group_;  // by member, nothing for this one
  std::unique_ptr<GroupExchange> exchange_;
};

}  // namespace butterfly
