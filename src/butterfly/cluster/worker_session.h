// One coordinator's time with a worker: its control connection, and the assignments that it gives, one for each epoch.
// Owns a thread for control, which is never busy with anything else, so that every ping is answered at once, one
// for the work, one that loads ahead. deliver(), leave() and the questions are for the server's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "butterfly/cluster/channel_hub.h"
#include "butterfly/cluster/control_link.h"
#include "butterfly/cluster/stage_connections.h"
#include "butterfly/cluster/weight_giver.h"
#include "butterfly/cluster/weight_transfer.h"
#include "butterfly/cluster/worker_server.h"

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

  /// Asks the coordinator to go on without this worker, which serves until it is released.
  void leave();

  /// Takes the coordinator's control connection for dead, whatever it looks like from here; ends soon after.
  void abandon() { link_.close(); }

 private:
  void run_control();
  bool handle(const control::ControlMessage& message);
  bool begin(Assignment assignment);
  void begin_preparation(Assignment assignment);
  void run_preparations();
  Status prepare(const Assignment& assignment, const std::stop_token& stop);
  void run_assignments();
  void run_work(const Assignment& assignment, const std::stop_token& stop);
  Status work(const Assignment& assignment, const std::stop_token& stop);
  Status serve(const Assignment& assignment, std::uint64_t memory_bytes, StageConnections& connections,
               const std::stop_token& stop);
  RemoteWeightFetcher::Source source_of(const Assignment& assignment, const std::stop_token& stop) const;
  Result<std::shared_ptr<Channel>> wait_for_weights(Epoch epoch);
  void check_neighbours(Epoch epoch, std::span<const std::shared_ptr<Channel>> channels);
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
  WeightGiver giver_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> ended_{false};
  bool released_ = false;     // the control thread's
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Epoch epoch_{};                      // of the last assignment
  std::string model_hash_;             // of the same
  std::optional<Assignment> working_;  // on which, once it is loaded
  std::uint64_t memory_bytes_ = 0;     // that it holds
  std::optional<Assignment> next_;     // not begun
  std::stop_source work_stop_;         // of the one that is worked on
  std::optional<Assignment> next_preparation_;
  std::stop_source preparation_stop_;
  bool loading_ = false;  // an assignment's weights
  bool preparing_ = false;
  std::thread work_;
  std::thread preparations_;
  std::thread control_;
};

}  // namespace butterfly
