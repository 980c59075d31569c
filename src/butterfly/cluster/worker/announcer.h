// Announces a worker to a coordinator, again and again while it has none: the coordinator then dials the worker, as it
// does with those that it was told of. Owns its thread.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "butterfly/cluster/worker/worker_server.h"

namespace butterfly {

class Announcer {
 public:
  /// `options` must outlive it; `wanted` says, from another thread, whether the worker is free. `address` is where the
  /// worker listens.
  Announcer(const WorkerOptions& options, std::string address, std::function<bool()> wanted);

 private:
  void run(const std::string& address, const std::function<bool()>& wanted, const std::stop_token& stop) const;

  const WorkerOptions& options_;
  std::jthread thread_;
};

}  // namespace butterfly
