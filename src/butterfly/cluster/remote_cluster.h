// The engine behind connect_cluster(): worker processes over TCP. For each worker a thread that listens to its control
// connection and, until it is ready, one that sends it weights; one thread for all heartbeats.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "butterfly/cluster/cluster_session.h"
#include "butterfly/cluster/control_link.h"
#include "butterfly/cluster/health.h"

namespace butterfly {

/// A worker that has said hello.
struct Greeted {
  std::string address;
  NodeDescriptor node;
  std::unique_ptr<ControlLink> link;
};

class RemoteCluster final : public ClusterSession {
 public:
  RemoteCluster(std::vector<Greeted> greeted, const SessionId& id, const ClusterOptions& options);
  ~RemoteCluster() override;

  const std::vector<NodeDescriptor>& nodes() const override { return nodes_; }
  Result<PipelineEnds> start(const StartRequest& request, Deadline deadline) override;
  std::optional<Error> failed() const override { return health_->failure(); }
  Result<std::uint64_t> data_bytes(Deadline deadline) override;
  void stop() override;

 private:
  struct Worker {
    std::string address;
    std::unique_ptr<ControlLink> link;
    std::string title;  // "worker 10.0.0.2:7000 (stage 2 of 3)"
    // Guarded by mutex_, as told by the worker:
    bool ready = false, released = false, gone = false;
    std::uint64_t memory_bytes = 0, pong_sequence = 0, data_bytes_sent = 0;
    ChannelPtr weights;
    std::thread monitor, weight_server;
  };

  void run_monitor(Worker& worker);
  void handle(Worker& worker, const control::ControlMessage& message);
  void run_heartbeat();
  void ping_all();
  Result<ChannelPtr> open_data(const std::string& address, const char* label, Deadline deadline) const;
  Status assign(const StartRequest& request, Deadline deadline);
  Status wait_until_ready(const StartRequest& request, Deadline deadline);

  const SessionId id_;
  const ClusterOptions options_;
  std::vector<NodeDescriptor> nodes_;
  const std::shared_ptr<Health> health_;  // also the pipeline channels'
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> stages_;  // in pipeline order; written once, by start(), under mutex_
  WeightProvider provider_;
  std::atomic<std::uint64_t> weight_bytes_{0};
  std::shared_ptr<Channel> input_, output_;  // also the pipeline channels'
  std::uint64_t ping_sequence_ = 0;          // guarded by mutex_
  std::atomic<bool> stopping_{false};
  bool started_ = false;
  bool stopped_ = false;
  std::thread heartbeat_;
};

}  // namespace butterfly
