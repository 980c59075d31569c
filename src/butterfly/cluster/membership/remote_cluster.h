// One epoch of worker processes over TCP. Their control connections belong to the registry and outlive it; its data
// connections carry its number in their labels. Owns one thread per working node until that has its weights.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "butterfly/cluster/membership/health.h"
#include "butterfly/cluster/membership/worker_registry.h"

namespace butterfly {

class RemoteCluster final : public ClusterSession, private MemberObserver {
 public:
  /// One at a time for a registry, which must outlive it.
  RemoteCluster(WorkerRegistry& registry, std::vector<RemoteWorkerPtr> members);
  ~RemoteCluster() override;

  const std::vector<NodeDescriptor>& nodes() const override { return nodes_; }
  Result<PipelineChannels> start(const StartRequest& request, Deadline deadline) override;
  std::optional<Error> failed() const override { return health_->failure(); }
  std::vector<std::string> complaining() const override;
  std::vector<StageWork> work() const override;
  Result<DataTraffic> data_traffic(Deadline deadline) override;
  void stop() override;

 private:
  /// A member that works, with its shares of the plan.
  struct Worker {
    RemoteWorkerPtr member{};
    std::vector<Assignment> assignments{};  // in pipeline order
    std::vector<std::size_t> shares{};      // their places in the plan
    std::string title{};                    // "worker 10.0.0.2:7000 (stage 2 of 3, slices 3-5)"
    // Guarded by mutex_, as told by the worker:
    bool ready = false, complained = false;
    std::uint64_t pong_sequence = 0;
    ChannelStats sent{};  // to the next stages, as its last pong said
    StageWork work{};
    std::vector<ReadyShare> ready_shares{};  // for each share
    std::unique_ptr<Channel> weights{};
    std::thread weight_server{};
  };

  void on_message(const RemoteWorker& member, const control::ControlMessage& message) override;
  void on_gone(const RemoteWorker& member, const Error& cause) override;
  Worker* worker_of(const RemoteWorker& member);
  const Worker& worker_of(std::size_t share) const { return *workers_[worker_of_share_[share]]; }
  void hear_ready(Worker& worker, const control::Ready& ready);
  void make_workers(const StartRequest& request);
  Result<ChannelPtr> open_data(const Worker& worker, const std::string& label, Deadline deadline) const;
  Status open_channels(Deadline deadline);
  std::vector<std::string> holders_for(std::size_t worker) const;
  Status assign();
  Status wait_until_ready(const StartRequest& request, Deadline deadline);

  WorkerRegistry& registry_;
  const std::vector<RemoteWorkerPtr> members_;
  std::vector<NodeDescriptor> nodes_;
  std::stop_source giving_up_;            // connections that are being opened
  const std::shared_ptr<Health> health_;  // also the pipeline channels'
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Epoch epoch_{};
  Purpose purpose_ = Purpose::kRun;
  std::vector<std::unique_ptr<Worker>> workers_;  // in the order of their first shares; written once, by start()
  std::vector<std::size_t> worker_of_share_;      // of the plan; the same
  WeightProvider provider_;
  std::atomic<std::uint64_t> weight_bytes_{0};
  std::shared_ptr<Channel> input_, output_;  // also the pipeline channels'
  bool started_ = false;
  bool stopped_ = false;
  std::thread attendant_;  // promotes complaints that come due
};

}  // namespace butterfly
