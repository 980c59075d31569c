// Where workers ask a coordinator to use them, and people how its workers are: each announcement is a connection whose
// label is the address that the worker listens on. Owns its thread and its listener; the registry must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "butterfly/cluster/membership/worker_registry.h"
#include "butterfly/cluster/worker/status_server.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

class JoinServer {
 public:
  /// `epoch` and `rebalance` (null: plans stay) are called from other threads.
  JoinServer(std::unique_ptr<Listener> listener, WorkerRegistry& registry, std::function<Epoch()> epoch,
             std::function<Result<std::string>()> rebalance = {});
  ~JoinServer();
  JoinServer(const JoinServer&) = delete;
  JoinServer& operator=(const JoinServer&) = delete;

  /// With the port that the system chose.
  std::string address() const { return listener_->address(); }

 private:
  void run();
  void answer(Arrival& arrival);

  const std::unique_ptr<Listener> listener_;
  WorkerRegistry& registry_;
  StatusServer status_server_;
  std::thread thread_;
};

}  // namespace butterfly
