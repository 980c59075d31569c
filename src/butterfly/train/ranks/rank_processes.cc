#include "butterfly/train/ranks/rank_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/cluster/membership/cluster_session.h"
#include "butterfly/machine/usage/recorded_process.h"
#include "butterfly/train/ranks/rank_child.h"
#include "butterfly/train/ranks/rank_leader.h"

namespace butterfly {
namespace {

constexpr std::chrono::milliseconds kEndTimeout{10'000};

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

/// What a child knows of its parent: where rank 0 is, and for which run.
struct Parent {
  std::string address{};
  SessionId session{};
};

/// Tells rank 0 where this process listens. Errors: those of connect_tcp().
Result<RankControl> introduce(int number, const Parent& parent, const Listener& listener, Deadline deadline) {
  ConnectOptions options;
  options.introduction.role = ConnectionRole::kControl;
  options.introduction.session = parent.session;
  options.introduction.label = "rank";
  options.peer_name = "rank 0";
  BF_ASSIGN_OR_RETURN(auto channel, connect_tcp(parent.address, options, deadline));
  RankControl control(std::move(channel));
  BF_TRY(
      control.send({.kind = RankMessageKind::kHello, .members = {{.number = number, .address = listener.address()}}}));
  return control;
}

Status run_rank(int number, const Parent& parent, const RunConfig& config, const RanksOptions& options) {
  BF_ASSIGN_OR_RETURN(const auto listener, Listener::create({}));
  BF_ASSIGN_OR_RETURN(auto control,
                      introduce(number, parent, *listener, std::chrono::steady_clock::now() + options.member_timeout));
  RankChild child{.number = number, .leader = std::move(control), .listener = *listener};
  child.mesh.session = parent.session;
  return run_rank_child(child, config, options);
}

/// In the new process: never returns.
[[noreturn]] void run_child(int number, const Parent& parent, const RunConfig& config, const RanksOptions& options) {
  // A terminal interrupts all processes, a batch system ends them all; when the run stops is rank 0's to say.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  Status done;
  {
    const RecordedProcess recorded("rank");
    done = run_rank(number, parent, config, options);
  }
  // Other errors have been told to rank 0, which returns them.
  if (!done && ends_epoch(done.error())) log().error("{}", done.error().message);
  ::_exit(done ? 0 : 1);
}

/// fork() while a recorder may run; the child is recorded on its own.
pid_t fork_recorded() {
  trace::ForkLock lock;
  const pid_t pid = ::fork();
  if (pid == 0) lock.forget_parent();
  return pid;
}

/// Forks the other ranks, and waits for them to end.
class Processes final : public OtherRanks {
 public:
  Processes(const RunConfig& config, const RanksOptions& options) : config_(config), options_(options) {}
  ~Processes() override { end_processes(); }

  Result<std::vector<LedRank>> start() override;
  Result<std::unique_ptr<RankTrainer>> make_trainer(const TrainRank& place) override {
    return options_.make_trainer(config_, place);
  }
  Result<std::unique_ptr<Collectives>> connect(const std::vector<RankProcess>& members, Epoch epoch,
                                               const std::function<Status()>& still_wanted) override {
    MeshOptions mesh;
    mesh.session = session_;
    mesh.epoch = epoch;
    mesh.still_wanted = still_wanted;
    return connect_epoch(*listener_, members, std::move(mesh), config_, options_);
  }
  std::string terminate(LedRank& rank, const Error& cause) override;

 private:
  Status fork_processes(std::vector<LedRank>& ranks);
  Status handshake(Arrival arrival, std::vector<LedRank>& ranks) const;
  Status check_alive_before_hello() const;
  void end_processes();

  const RunConfig& config_;
  const RanksOptions& options_;
  const SessionId session_ = make_session_id();
  std::unique_ptr<Listener> listener_;
  std::map<int, pid_t> living_;  // by number
  bool all_said_hello_ = false;
};

Result<std::vector<LedRank>> Processes::start() {
  std::vector<LedRank> ranks;
  BF_ASSIGN_OR_RETURN(listener_, Listener::create({}));
  BF_TRY(fork_processes(ranks));
  const Deadline deadline = std::chrono::steady_clock::now() + options_.member_timeout;
  const auto silent = [](const LedRank& rank) { return rank.address.empty(); };
  while (std::ranges::any_of(ranks, silent)) {
    BF_TRY(check_alive_before_hello());
    auto arrival = listener_->accept(std::min(deadline, after_ms(100)));
    if (arrival) {
      BF_TRY(handshake(std::move(*arrival), ranks));
    } else if (arrival.error().code != ErrorCode::kTimeout || std::chrono::steady_clock::now() >= deadline) {
      return tl::unexpected(arrival.error());
    }
  }
  all_said_hello_ = true;
  return ranks;
}

Status Processes::fork_processes(std::vector<LedRank>& ranks) {
  const Parent parent{.address = listener_->address(), .session = session_};
  for (int number = 1; number < config_.parallel.ranks; ++number) {
    const pid_t pid = fork_recorded();
    if (pid < 0) return make_error(ErrorCode::kIo, "rank {} got no process: {}", number, std::strerror(errno));
    if (pid == 0) {
      listener_.reset();
      run_child(number, parent, config_, options_);
    }
    living_[number] = pid;
    ranks.push_back({.number = number, .title = fmt::format("process {}", pid)});
  }
  return {};
}

Status Processes::check_alive_before_hello() const {
  for (const auto& [number, pid] : living_) {
    siginfo_t ended{};  // looked at, not reaped
    const int found = ::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (found == 0 && ended.si_pid == 0) continue;
    return make_error(ErrorCode::kUnavailable, "rank {} (process {}) ended before the run began", number, pid);
  }
  return {};
}

/// Strangers are let go.
Status Processes::handshake(Arrival arrival, std::vector<LedRank>& ranks) const {
  const Introduction& said = arrival.introduction;
  if (said.role != ConnectionRole::kControl || said.session != session_) return {};
  RankControl control(std::move(arrival.channel));
  BF_ASSIGN_OR_RETURN(const RankMessage hello, control.receive(after_ms(5000)));
  if (hello.kind != RankMessageKind::kHello) {
    return make_error(ErrorCode::kProtocol, "a process said {} before it said which rank it is",
                      static_cast<int>(hello.kind));
  }
  const RankProcess& who = hello.members.front();
  const auto rank = std::ranges::find(ranks, who.number, &LedRank::number);
  if (rank == ranks.end()) {
    return make_error(ErrorCode::kProtocol, "a process says that it is rank {}, there are ranks 0 to {}", who.number,
                      ranks.size());
  }
  rank->address = who.address;
  rank->control = std::move(control);
  return {};
}

std::string Processes::terminate(LedRank& rank, const Error& /*cause*/) {
  const pid_t pid = living_.at(rank.number);
  living_.erase(rank.number);
  ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return describe_end(status);
}

void Processes::end_processes() {
  const Deadline deadline = std::chrono::steady_clock::now() + kEndTimeout;
  for (const auto& [number, pid] : living_) {
    int status = 0;
    while (all_said_hello_ && std::chrono::steady_clock::now() < deadline) {
      if (::waitpid(pid, &status, WNOHANG) != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    // After an end that was waited for there is nothing to kill or to wait for any more.
    if (::waitpid(pid, &status, WNOHANG) == 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
    }
  }
}

}  // namespace

Result<TrainResult> train_with_processes(const RunConfig& config, const TrainObserver& observer,
                                         const std::stop_token& stop, const RanksOptions& options) {
  Processes processes(config, options);
  return lead_ranks(processes, config, observer, stop, options.member_timeout);
}

}  // namespace butterfly
