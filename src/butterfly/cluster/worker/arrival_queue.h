// A listener without a port: connections that another listener accepted, for code that takes them from a Listener.
// Thread-safe, but for accept(), which is for one thread at a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>

#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

class ArrivalQueue final : public Listener {
 public:
  /// One connection more than kWaitingMax, or one after close(), is closed.
  void deliver(Arrival arrival);
  static constexpr std::size_t kWaitingMax = 1024;

  std::string address() const override { return {}; }
  Result<Arrival> accept(Deadline deadline) override;
  void interrupt() override;
  void close() override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Arrival> waiting_;
  bool interrupted_ = false;
  bool closed_ = false;
};

}  // namespace butterfly
