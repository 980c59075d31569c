#include "train/train_restart.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stop_token>
#include <string>
#include <vector>

#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "commands.h"
#include "shared/child_process.h"

namespace butterfly::app {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

/// The words with which this process was started.
Result<std::vector<std::string>> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> words;
  for (std::size_t at = 0; at < bytes.size(); at += words.back().size() + 1) words.emplace_back(bytes.c_str() + at);
  if (!words.empty()) return words;
  return make_error(ErrorCode::kIo, "/proc/self/cmdline: cannot be read: {}", std::strerror(errno));
}

/// Starts the program again with the same words. In a process group of its own it hears of Ctrl-C from here alone,
/// once; when this process is killed it saves and ends.
Result<pid_t> start_leader(int restarts) {
  BF_ASSIGN_OR_RETURN(std::vector<std::string> words, own_words());
  std::vector<std::string> environment = child_environment({fmt::format("{}={}", kRestartCount, restarts)});
  const std::vector<char*> argv = pointers_to(words), envp = pointers_to(environment);
  const pid_t here = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return make_error(ErrorCode::kIo, "the run got no process: {}", std::strerror(errno));
  if (pid > 0) return pid;
  // From here to the end nothing but system calls: other threads of the parent may have held locks.
  ::setpgid(0, 0);
  // It may come more than once, as the parent's threads die one after the other: a second SIGTERM would end the run
  // unsaved.
  ::prctl(PR_SET_PDEATHSIG, SIGUSR1);
  if (::getppid() == here) ::execve(kThisProgram, argv.data(), envp.data());
  ::_exit(kExitBadInput);
}

Result<int> wait_for(pid_t pid) {
  // However often SIGUSR1 comes, it is one wish to save and end.
  const auto pass_on = [pid] { ::kill(pid, SIGUSR1); };
  const std::stop_callback on_interrupt(interrupted(), pass_on), on_warning(warned(), pass_on);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return make_error(ErrorCode::kIo, "process {} is lost: {}", pid, std::strerror(errno));
  }
  return status;
}

/// Ranks that rank 0 left behind: they would notice by themselves, and take a core and write files until then.
void end_orphans(pid_t leader) {
  ::kill(-leader, SIGKILL);
  while (::waitpid(-leader, nullptr, 0) > 0 || errno == EINTR) {
  }
}

std::string newest_checkpoint(const RunConfig& config) {
  const std::vector<std::int64_t> steps = saved_steps(config.checkpoint.directory);
  return steps.empty() ? std::string() : checkpoint_path(config.checkpoint.directory, steps.back());
}

}  // namespace

Result<std::optional<int>> lead_again(RunConfig& config) {
  if (config.checkpoint.max_restarts == 0) return std::nullopt;
  if (const char* before = std::getenv(kRestartCount); before != nullptr) {
    const std::string saved = std::strcmp(before, "0") == 0 ? std::string() : newest_checkpoint(config);
    if (!saved.empty()) config.resume = saved;
    // What this process starts itself is no leader.
    ::unsetenv(kRestartCount);
    return std::nullopt;
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of rank 0 can be waited for
  for (int restarts = 0;; ++restarts) {
    BF_ASSIGN_OR_RETURN(const pid_t pid, start_leader(restarts));
    BF_ASSIGN_OR_RETURN(const int status, wait_for(pid));
    if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
    end_orphans(pid);
    const std::string how = fmt::format("rank 0 (process {}) was ended by signal {} ({})", pid, WTERMSIG(status),
                                        strsignal(WTERMSIG(status)));
    if (interrupted().stop_requested() || warned().stop_requested()) return kExitInterrupted;
    if (restarts == config.checkpoint.max_restarts) {
      return make_error(ErrorCode::kUnavailable,
                        "{}, and was started again as often as checkpoint.max_restarts says: {}", how, restarts);
    }
    const std::string saved = newest_checkpoint(config);
    if (config.log == LogLevel::kSilent) continue;
    std::fprintf(stderr, "%s; restart %d of %d %s\n", how.c_str(), restarts + 1, config.checkpoint.max_restarts,
                 saved.empty() ? "begins anew: nothing is saved yet" : ("goes on from " + saved).c_str());
  }
}

}  // namespace butterfly::app
