// A worker's side towards workers that miss weights: gives them those of its own model file. They check each against
// the digest that the coordinator told them, so they need not trust it. Owns a thread for each of them. Thread-safe.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "butterfly/cluster/worker/local_models.h"
#include "butterfly/cluster/worker/worker_delegate.h"
#include "butterfly/wire/channel/channel.h"

namespace butterfly {

class WeightServer {
 public:
  /// Both must outlive it.
  WeightServer(const LocalModels& local, const WorkerDelegate& delegate) : local_(local), delegate_(delegate) {}
  ~WeightServer();

  /// Serves the weights of the model with this hash until the channel closes; closes it at once where there is no such
  /// file here, or kGivingMax others are served.
  void give(ChannelPtr channel, const std::string& model_hash);

  static constexpr std::size_t kGivingMax = 16;

 private:
  struct Giving {
    std::shared_ptr<Channel> channel;  // closed by us to end it, used by its thread
    std::atomic<bool> over{false};
    std::jthread thread;
  };

  Status serve(Channel& channel, const std::string& model_hash) const;

  const LocalModels& local_;
  const WorkerDelegate& delegate_;
  std::mutex mutex_;
  std::list<Giving> giving_;
};

}  // namespace butterfly
