// One coordinator's time with a worker: its control connection, and the assignments that it gives for each epoch.
// Owns a thread for control, which is never busy with anything else, so that every ping is answered at once, one
// for the work, one that loads ahead; and one for its part in a training run, where that is what the coordinator came
// for. deliver(), leave() and the questions are for the server's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/worker/arrival_queue.h"
#include "butterfly/cluster/worker/channel_hub.h"
#include "butterfly/cluster/worker/stage_connections.h"
#include "butterfly/cluster/worker/weight_server.h"
#include "butterfly/cluster/worker/weight_transfer.h"
#include "butterfly/cluster/worker/worker_server.h"

namespace butterfly {

class WorkerSession {
 public:
  /// Starts at once; `on_end` is called by the session's thread when it has ended.
  WorkerSession(const WorkerOptions& options, LocalModels& local, WorkerDelegate& delegate, Arrival control,
                std::function<void()> on_end);
  ~WorkerSession();

  const SessionId& id() const { return id_; }
  const std::string& coordinator() const { return coordinator_; }
  bool ending() const { return ending_; }  // the coordinator is gone or has released the worker
  bool ended() const { return ended_; }
  void deliver(Arrival data);

  /// What it does now; the parts of WorkerStatus that are about the session.
  void describe(control::WorkerStatus& status) const;

  /// Asks the coordinator to go on without this worker, which serves until it is released. A training run goes on
  /// without it at once.
  void leave();

  /// Takes the coordinator's control connection for dead, whatever it looks like from here; ends soon after.
  void abandon() { link_.close(); }

 private:
  void run_control();
  Status say_hello();
  bool handle(const control::ControlMessage& message);
  bool begin(std::vector<Assignment> assignments);
  void begin_preparation(std::vector<Assignment> assignments);
  void run_preparations();
  Status prepare(std::span<const Assignment> assignments, const std::stop_token& stop);
  void run_assignments();
  void run_work(std::span<const Assignment> assignments, const std::stop_token& stop);
  Status work(std::span<const Assignment> assignments, const std::stop_token& stop);
  Result<std::vector<std::uint64_t>> load(std::span<const Assignment> assignments, Channel& weights,
                                          const std::stop_token& stop);
  Status serve(std::span<const Assignment> assignments, std::span<const std::uint64_t> memory_bytes,
               std::span<const std::unique_ptr<StageConnections>> connections, const std::stop_token& stop);
  RemoteWeightFetcher::Source source_of(const Assignment& assignment, const std::stop_token& stop) const;
  Result<std::shared_ptr<Channel>> wait_for_weights(Epoch epoch);
  void check_neighbours(Epoch epoch, std::span<const std::shared_ptr<Channel>> channels);
  void begin_training(ChannelPtr leader);
  void say_pong(std::uint64_t sequence);
  void complain(Epoch epoch, const Error& error);

  const WorkerOptions& options_;
  LocalModels& local_;
  WorkerDelegate& delegate_;
  const SessionId id_;
  const std::string coordinator_;
  const std::function<void()> on_end_;
  ControlLink link_;
  ChannelHub hub_;
  WeightServer weight_server_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> ended_{false};
  bool released_ = false;     // the control thread's
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Epoch epoch_{};                                // of the last assignments
  std::string model_hash_;                       // of the same
  std::vector<Assignment> working_;              // on which, once they are loaded; empty: none
  std::uint64_t memory_bytes_ = 0;               // that they hold
  std::optional<std::vector<Assignment>> next_;  // not begun
  std::stop_source work_stop_;                   // of those that are worked on
  std::optional<std::vector<Assignment>> next_preparation_;
  std::stop_source preparation_stop_;
  bool loading_ = false;  // weights of assignments
  bool preparing_ = false;
  std::stop_source training_stop_;
  bool training_now_ = false;
  std::thread training_;  // at most one run for a session
  ArrivalQueue members_;  // of that run
  std::thread work_;
  std::thread preparations_;
  std::thread control_;
};

}  // namespace butterfly
