// Those who want to know something of a node but none of its work: questions about its status, and probes of its links.
// Each gets a thread and little time; too many are turned away. Thread-safe.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "butterfly/cluster/control.pb.h"
#include "butterfly/wire/tcp.h"

namespace butterfly {

class Visitors {
 public:
  using StatusFunction = std::function<void(control::ControlMessage& answer)>;

  /// `status` fills in the node's answer; called from several threads.
  Visitors(NodeAccess access, StatusFunction status);
  ~Visitors();

  /// Takes arrivals of the roles status and probe; false for others.
  bool receive(Arrival& arrival);

 private:
  struct Visit {
    std::shared_ptr<Channel> channel;  // closed by us to end the visit, used by its thread
    std::atomic<bool> over{false};
    std::jthread thread;
  };
  static constexpr std::size_t kVisitsMax = 16;

  void answer(const std::shared_ptr<Channel>& channel) const;
  static void echo(Channel& channel);

  const NodeAccess access_;
  const StatusFunction status_;
  std::mutex mutex_;
  std::list<Visit> visits_;
};

}  // namespace butterfly
