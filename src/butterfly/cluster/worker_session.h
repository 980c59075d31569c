// One coordinator's time with a worker: its control connection, its data connections and the work that it assigned.
// Owns a thread for control, which also answers pings, and one for the work. deliver(), stop() and the questions are
// for the server's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "butterfly/cluster/control_link.h"
#include "butterfly/cluster/worker_server.h"

namespace butterfly {

/// The data connections of a session by label, waited for until all are closed.
class ChannelHub {
 public:
  /// Keeps a channel for whoever waits for it; unknown or repeated labels are turned away.
  void deliver(const std::string& label, ChannelPtr channel);

  /// A channel that the session opened itself.
  std::shared_ptr<Channel> keep(const std::string& label, ChannelPtr channel);

  /// Errors: kTimeout, kCancelled (closed).
  std::shared_ptr<Channel> wait(const std::string& label, Deadline deadline);

  /// Nothing, where no such channel is open.
  std::shared_ptr<Channel> find(const std::string& label) const;

  void close();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Channel>> channels_;
  bool closed_ = false;
};

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

 private:
  void run_control();
  bool handle(const control::ControlMessage& message);
  void run_work(const Assignment& assignment);
  Status work(const Assignment& assignment, const std::stop_token& stop);
  Status serve(const Assignment& assignment, std::uint64_t memory_bytes, Channel& output, const std::stop_token& stop);
  Result<std::shared_ptr<Channel>> open_output(const Assignment& assignment);
  Result<std::shared_ptr<Channel>> wait_for(const char* label);
  void say_pong(std::uint64_t sequence);

  const WorkerOptions& options_;
  LocalModels& local_;
  WorkerDelegate& delegate_;
  const SessionId id_;
  const std::string coordinator_;
  const std::function<void()> on_end_;
  ControlLink link_;
  ChannelHub hub_;
  std::stop_source work_stop_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> ended_{false};
  bool released_ = false;  // the control thread's
  std::thread work_;       // started and joined by the control thread
  std::thread control_;
};

}  // namespace butterfly
