// The workers that a coordinator is connected with, and that it would like to be. A member's control connection lives
// as long as the member, through all epochs; one thread listens to each, one sends all heartbeats, one per lost or
// announced address dials it. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/cluster/control/control_label.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/cluster/membership/phi_accrual.h"

namespace butterfly {

/// A worker that has said hello.
struct RemoteWorker {
  std::string title() const { return "worker " + address; }

  std::string address{};
  NodeDescriptor node{};
  std::optional<WorkerIdentity> identity{};  // of its process
  bool trains = false;                       // takes part in training runs
  std::unique_ptr<ControlLink> link{};
  std::atomic<bool> has_file{false};  // of the model that its epochs run
  // Guarded by the registry's mutex:
  bool gone = false, leaving = false, released = false, suspected = false;
  PhiAccrual silence{std::chrono::milliseconds(200)};
  std::thread monitor{};
};
/// Also an epoch's that the worker is part of, which may outlast the worker.
using RemoteWorkerPtr = std::shared_ptr<RemoteWorker>;

/// A listener for what members say: the epoch that runs, the next that prepares. Called from the members'
/// threads, one call at a time.
class MemberObserver {
 public:
  virtual ~MemberObserver() = default;
  virtual void on_message(const RemoteWorker& member, const control::ControlMessage& message) = 0;
  virtual void on_gone(const RemoteWorker& member, const Error& cause) = 0;
};

class WorkerRegistry {
 public:
  WorkerRegistry(const ClusterOptions& options, std::string name);
  /// Releases every member and waits for their confirmation, for release_timeout at most.
  ~WorkerRegistry();

  /// Connects with all of them, in parallel. Errors: those of Membership::create().
  Status handshake_all(const std::vector<std::string>& addresses, Deadline deadline, const std::stop_token& stop = {});

  /// Dials this address until it answers, gives up when it never did (anybody may announce anything) or when a member
  /// answers whom we know by another address, and dials it again whenever it is lost; one that was not named to
  /// handshake_all() for a minute or two, since it announces itself again. Of those that were not named kDiallingMax
  /// are dialled at one time, and kStrangersMax that never were members for each `announced_by`, the node or host that
  /// said so; one that has not answered gives way to one that was not tried lately. Nothing happens where there is no
  /// room.
  void want(const std::string& address, const std::string& announced_by = {});
  static constexpr std::size_t kDiallingMax = 256;
  static constexpr std::size_t kStrangersMax = 16;

  /// Members that can be given work, by the order of their addresses' first appearance.
  std::vector<RemoteWorkerPtr> usable() const;

  /// Changes whenever usable() does.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  /// Waits until version() is another than `seen`. False: the deadline passed, or `stop` was requested.
  bool wait_for_change(std::uint64_t seen, Deadline deadline, std::stop_token stop) const;

  /// Why the member that was lost or began to leave last did so; one sentence.
  std::string last_change() const;

  /// forget() ends the observation; no call is under way any more on return.
  void observe(MemberObserver* observer);
  void forget(MemberObserver* observer);

  /// Asks every member for a pong with the sequence number that is returned.
  std::uint64_t ping();

  /// Lets those go that asked for it; no epoch uses them any more.
  void release_leaving();

  /// Ends a member's life as if it had died, and lets kQuarantine pass before it is dialled again.
  void expel(const std::string& address, const Error& cause);
  static constexpr std::chrono::milliseconds kQuarantine{30'000};

  const SessionId& session() const { return session_; }
  const ClusterOptions& options() const { return options_; }
  void describe(control::CoordinatorStatus& status) const;

 private:
  struct Connected;
  /// Whom to reach; and, once a worker there says that it serves us already although no connection with it is left,
  /// which one we have lost.
  struct Call {
    std::string address{};
    std::optional<WorkerIdentity> lost{};
  };
  /// A worker that has said hello; or none, and the identity of one that serves us already on another connection.
  struct Answer {
    RemoteWorkerPtr member{};
    std::optional<WorkerIdentity> serving{};
  };
  using Answers = std::vector<std::optional<Result<Answer>>>;
  Result<Connected> connect(const Call& call, Deadline deadline, const std::stop_token& stop) const;
  Result<control::ControlMessage> receive_hello(ControlLink& link, const std::string& address, Deadline deadline) const;
  Result<Answer> handshake(const Call& call, Deadline deadline, const std::stop_token& stop) const;
  Status settle(const std::vector<std::string>& addresses, Answers& answers, Deadline deadline,
                const std::stop_token& stop) const;
  void admit(RemoteWorkerPtr member);
  std::vector<RemoteWorkerPtr> take_dead(const std::string& address);
  void run_monitor(const RemoteWorkerPtr& member);
  void handle(const RemoteWorkerPtr& member, const control::ControlMessage& message);
  void lose(const RemoteWorkerPtr& member, const Error& cause);
  void run_heartbeat(const std::stop_token& stop);
  struct Dialling {
    std::string announced_by{};
    int failures = 0;  // since it answered last; guarded by mutex_
    std::atomic<bool> over{false};
    std::jthread thread;
  };
  using DiallingMap = std::map<std::string, std::unique_ptr<Dialling>>;
  void sweep_dialling();
  bool make_room(const std::string& address, const std::string& announced_by);
  bool was_tried(const std::string& address) const;
  void note_failure(const std::string& address, Dialling& mine);
  void run_dialling(const std::string& address, const std::stop_token& stop, Dialling& mine);
  bool wait_until_lost(const std::string& address, const std::optional<WorkerIdentity>& identity,
                       const std::stop_token& stop);
  bool is_here(const std::optional<WorkerIdentity>& identity) const;
  bool was_here(const std::string& address) const;
  Deadline due(const RemoteWorker& member) const;
  void changed(std::string what);

  const ClusterOptions options_;
  const SessionId session_ = make_session_id();
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::vector<RemoteWorkerPtr> members_;           // the dead too, until their threads are joined
  std::vector<std::string> order_;                 // addresses as they first appeared
  std::set<std::string> named_;                    // those of handshake_all()
  std::map<std::string, WorkerIdentity> aliases_;  // other addresses of members
  DiallingMap dialling_;
  std::vector<std::unique_ptr<Dialling>> stopping_;  // those that gave way, until their threads have ended
  std::map<std::string, Deadline> tried_until_;  // addresses that did not answer: they take no one's place till then
  std::map<std::string, Deadline> quarantined_until_;
  std::atomic<std::uint64_t> ping_sequence_{0};
  std::string last_change_;
  std::atomic<std::uint64_t> version_{1};
  Deadline silence_counts_from_{};  // our own heartbeats were sent in time since then
  Deadline last_beat_{};
  bool ending_ = false;
  std::mutex observing_;  // held during calls; never taken while mutex_ is held
  std::vector<MemberObserver*> observers_;
  std::jthread heartbeat_;
};

}  // namespace butterfly
