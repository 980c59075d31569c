// The data connections of a worker's session, by what flows through them and for which epoch. Connections may arrive
// before the assignment that needs them, and after the epoch that needed them. Thread-safe.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/cluster/control/control_link.h"

namespace butterfly {

class ChannelHub {
 public:
  /// Keeps a channel until a thread waits for it. Unknown and repeated labels are turned away, and those of ended
  /// epochs, which are counted.
  void deliver(const std::string& label, ChannelPtr channel);

  /// A channel that the session opened itself.
  std::shared_ptr<Channel> keep(const std::string& what, Epoch epoch, ChannelPtr channel);

  /// Nothing where none came before the deadline, or the epoch ended.
  std::shared_ptr<Channel> wait(const std::string& what, Epoch epoch, Deadline deadline);

  /// Nothing, where no such channel is open.
  std::shared_ptr<Channel> find(const std::string& what, Epoch epoch) const;

  /// Those that steps go through, in both directions: all but the one for weights.
  std::vector<std::shared_ptr<Channel>> step_channels(Epoch epoch) const;

  /// Ends this epoch and those before: their channels are closed, now and when they arrive later.
  void end_through(Epoch epoch);

 private:
  static constexpr std::size_t kChannelsMax = 4 * kSharesMax;  // an epoch has one for weights, and those of each stage

  using Key = std::pair<Epoch, std::string>;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::shared_ptr<Channel>> channels_;  // shared with the threads that move data
  Epoch ended_{};
};

}  // namespace butterfly
