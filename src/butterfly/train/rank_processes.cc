#include "butterfly/train/rank_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/cluster/cluster_session.h"
#include "butterfly/train/rank_child.h"
#include "butterfly/train/rank_control.h"

namespace butterfly {
namespace {

constexpr int kUnharmedEpochsMax = 3;  // in a row that end although nobody is lost
constexpr std::chrono::milliseconds kEndTimeout{10'000};

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

struct Process {
  int number = 0;
  pid_t pid = -1;
  std::string address{};
  RankControl control{};
  std::optional<RankNews> held{};  // read, and not acted upon yet
};

/// In the new process: never returns.
[[noreturn]] void run_child(const RankChild& child, const RunConfig& config, const RanksOptions& options) {
  // A terminal interrupts all processes, a batch system ends them all; when the run stops is rank 0's to say.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  const Status done = run_rank_child(child, config, options);
  // Other errors have been told to rank 0, which returns them.
  if (!done && ends_epoch(done.error())) log().error("{}", done.error().message);
  ::_exit(done ? 0 : 1);
}

/// Rank 0: forks the others, leads epochs until one comes to the end of the run, and waits for the others to end.
class Leader {
 public:
  Leader(const RunConfig& config, const TrainObserver& observer, const std::stop_token& stop,
         const RanksOptions& options)
      : config_(config), observer_(observer), stop_(stop), options_(options) {}
  ~Leader() { end_processes(); }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  Result<TrainResult> run() {
    BF_TRY(start());
    int unharmed = 0;
    for (Epoch epoch{1};; ++epoch.value) {
      auto result = run_epoch(epoch);
      if (result) return result;
      if (!epochs_.empty()) epochs_.back()->abort();
      if (!ends_epoch(result.error())) return result;
      const std::size_t before = others_.size();
      BF_TRY(gather_survivors(epoch));
      unharmed = others_.size() == before ? unharmed + 1 : 0;
      if (unharmed == kUnharmedEpochsMax) {
        return make_error(ErrorCode::kUnavailable, "{} epochs ended although no rank is lost, the last one by: {}",
                          unharmed, result.error().message);
      }
      note("epoch {} ended ({}); {} of {} ranks go on", epoch.value, result.error().message, others_.size() + 1,
           config_.parallel.ranks);
    }
  }

 private:
  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) const {
    if (observer_.note) observer_.note(fmt::format(text, std::forward<Args>(args)...));
  }

  Status start();
  Status fork_processes();
  Status greet(Arrival arrival);
  Status check_alive_before_hello() const;
  Result<TrainResult> run_epoch(Epoch epoch);
  Status nothing_new();
  Status gather_survivors(Epoch epoch);
  Result<bool> survives(Process& process, Epoch epoch, Deadline deadline);
  void bury(const Process& process);
  void end_processes();

  const RunConfig& config_;
  const TrainObserver& observer_;
  const std::stop_token stop_;
  const RanksOptions& options_;
  const SessionId session_ = make_session_id();
  std::unique_ptr<Listener> listener_;
  std::vector<Process> others_;                       // who is left of them, ascending
  std::vector<std::unique_ptr<Collectives>> epochs_;  // all: the trainer may hold those before until it adopts others
  std::unique_ptr<Trainer> trainer_;
};

Status Leader::start() {
  BF_ASSIGN_OR_RETURN(listener_, Listener::create({}));
  BF_TRY(fork_processes());
  const Deadline deadline = std::chrono::steady_clock::now() + options_.member_timeout;
  const auto silent = [](const Process& process) { return process.address.empty(); };
  while (std::ranges::any_of(others_, silent)) {
    BF_TRY(check_alive_before_hello());
    auto arrival = listener_->accept(std::min(deadline, after_ms(100)));
    if (arrival) {
      BF_TRY(greet(std::move(*arrival)));
    } else if (arrival.error().code != ErrorCode::kTimeout || std::chrono::steady_clock::now() >= deadline) {
      return tl::unexpected(arrival.error());
    }
  }
  for (const Process& process : others_) note("rank {} is process {}", process.number, process.pid);
  return {};
}

Status Leader::fork_processes() {
  const std::string address = listener_->address();
  for (int number = 1; number < config_.parallel.ranks; ++number) {
    const pid_t pid = ::fork();
    if (pid < 0) return make_error(ErrorCode::kIo, "rank {} got no process: {}", number, std::strerror(errno));
    if (pid == 0) {
      listener_.reset();
      run_child({.number = number, .leader = address, .session = session_}, config_, options_);
    }
    others_.push_back({.number = number, .pid = pid});
  }
  return {};
}

Status Leader::check_alive_before_hello() const {
  for (const Process& process : others_) {
    siginfo_t ended{};  // looked at, not reaped
    const int found = ::waitid(P_PID, static_cast<id_t>(process.pid), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (found == 0 && ended.si_pid == 0) continue;
    return make_error(ErrorCode::kUnavailable, "rank {} (process {}) ended before the run began", process.number,
                      process.pid);
  }
  return {};
}

/// Strangers are let go.
Status Leader::greet(Arrival arrival) {
  const Introduction& said = arrival.introduction;
  if (said.role != ConnectionRole::kControl || said.session != session_) return {};
  RankControl control(std::move(arrival.channel));
  BF_ASSIGN_OR_RETURN(const RankNews hello, control.receive(after_ms(5000)));
  BF_ASSIGN_OR_RETURN(const auto who, parse_members(hello.text));
  const auto process = std::ranges::find(others_, who.front().number, &Process::number);
  if (hello.kind != RankMessage::kHello || process == others_.end()) {
    return make_error(ErrorCode::kProtocol, "a process says that it is rank {}, there are ranks 0 to {}",
                      who.front().number, others_.size());
  }
  process->address = who.front().address;
  process->control = std::move(control);
  return {};
}

Result<TrainResult> Leader::run_epoch(Epoch epoch) {
  std::vector<RankProcess> members{{.number = 0, .address = listener_->address()}};
  for (const Process& process : others_) members.push_back({.number = process.number, .address = process.address});
  for (Process& process : others_) {
    BF_TRY(process.control.send({.kind = RankMessage::kEpoch, .epoch = epoch, .text = members_text(members)}));
  }
  Collectives* collectives = nullptr;
  if (!others_.empty()) {
    BF_ASSIGN_OR_RETURN(
        auto made,
        connect_epoch(
            *listener_, members,
            {.rank = 0, .session = session_, .epoch = epoch, .still_wanted = [this] { return nothing_new(); }},
            options_.member_timeout));
    epochs_.push_back(std::move(made));
    collectives = epochs_.back().get();
  }
  const TrainRank place = train_rank(config_, members, 0, collectives);
  if (trainer_) {
    BF_TRY(trainer_->adopt(place));
  } else {
    BF_ASSIGN_OR_RETURN(trainer_, options_.make_trainer(config_, place));
  }
  return trainer_->run(observer_, stop_);
}

/// An error where a process has something to say, which is kept, or is gone.
Status Leader::nothing_new() {
  for (Process& process : others_) {
    auto news = process.control.receive(std::chrono::steady_clock::now());
    if (news) {
      process.held = std::move(*news);
      return make_error(ErrorCode::kUnavailable, "rank {} cannot take part: {}", process.number, process.held->text);
    }
    if (news.error().code != ErrorCode::kTimeout) return tl::unexpected(news.error());
  }
  return {};
}

/// Leaves those in others_ who have left the epoch and can begin another. Errors: of a rank that no epoch would mend.
Status Leader::gather_survivors(Epoch epoch) {
  for (Process& process : others_) {
    // A process that does not hear it is found out below.
    [[maybe_unused]] const Status told = process.control.send({.kind = RankMessage::kAbandon, .epoch = epoch});
  }
  const Deadline deadline = std::chrono::steady_clock::now() + options_.member_timeout;
  for (auto process = others_.begin(); process != others_.end();) {
    BF_ASSIGN_OR_RETURN(const bool goes_on, survives(*process, epoch, deadline));
    if (!goes_on) bury(*process);
    process = goes_on ? std::next(process) : others_.erase(process);
  }
  return {};
}

Result<bool> Leader::survives(Process& process, Epoch epoch, Deadline deadline) {
  for (;;) {
    Result<RankNews> news =
        process.held ? *std::exchange(process.held, std::nullopt) : process.control.receive(deadline);
    if (!news) return false;
    if (news->kind == RankMessage::kFailed) {
      return make_error(news->code, "rank {}: {}", process.number, news->text);
    }
    if (news->kind == RankMessage::kLost && news->epoch == epoch) return true;
  }
}

/// Gone, or silent for too long, which comes to the same.
void Leader::bury(const Process& process) {
  ::kill(process.pid, SIGKILL);
  int status = 0;
  ::waitpid(process.pid, &status, 0);
  note("rank {} (process {}) is lost: {}", process.number, process.pid, describe_end(status));
}

void Leader::end_processes() {
  for (Process& process : others_) {
    if (process.address.empty()) continue;  // has not come so far as to have a connection
    [[maybe_unused]] const Status told = process.control.send({.kind = RankMessage::kEnd});
  }
  const Deadline deadline = std::chrono::steady_clock::now() + kEndTimeout;
  for (const Process& process : others_) {
    int status = 0;
    while (!process.address.empty() && std::chrono::steady_clock::now() < deadline) {
      if (::waitpid(process.pid, &status, WNOHANG) != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    // After an end that was waited for there is nothing to kill or to wait for any more.
    if (::waitpid(process.pid, &status, WNOHANG) == 0) {
      ::kill(process.pid, SIGKILL);
      ::waitpid(process.pid, &status, 0);
    }
  }
  others_.clear();
}

}  // namespace

Result<TrainResult> train_with_processes(const RunConfig& config, const TrainObserver& observer,
                                         const std::stop_token& stop, const RanksOptions& options) {
  return Leader(config, observer, stop, options).run();
}

}  // namespace butterfly
