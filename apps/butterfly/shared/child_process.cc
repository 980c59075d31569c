#include "shared/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "butterfly/base/descriptor.h"
#include "commands.h"

namespace butterfly::app {
namespace {

/// Ctrl-C in a terminal reaches every process of the group, this one's child, too.
bool terminal_tells_child() {
  const int terminal = ::open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (terminal < 0) return false;
  const pid_t foreground = ::tcgetpgrp(terminal);
  ::close(terminal);
  return foreground == ::getpgrp();
}

/// In the child, between fork and exec: nothing but system calls.
[[noreturn]] void become(char** arguments, char** environment, int output, int errors) {
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve("/proc/self/exe", arguments, environment);
  ::_exit(127);
}

/// No descriptor where no file is asked for.
Result<Descriptor> open_output(const std::string& path) {
  if (path.empty()) return Descriptor();
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return make_error(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  return file;
}

}  // namespace

std::vector<std::string> child_environment(const std::vector<std::string>& instead) {
  std::vector<std::string> all;
  for (char** at = ::environ; *at != nullptr; ++at) {
    const std::string_view here = *at;
    const std::string_view name = here.substr(0, here.find('=') + 1);
    const bool replaced = std::ranges::any_of(instead, [&](const std::string& one) { return one.starts_with(name); });
    if (!replaced) all.emplace_back(here);
  }
  all.insert(all.end(), instead.begin(), instead.end());
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

Result<ChildProcess> ChildProcess::start(const ChildCommand& command) {
  std::vector<std::string> words{"butterfly"};
  words.insert(words.end(), command.words.begin(), command.words.end());
  std::vector<std::string> variables = child_environment(command.environment);
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  BF_ASSIGN_OR_RETURN(const Descriptor output, open_output(command.output));
  BF_ASSIGN_OR_RETURN(const Descriptor errors, open_output(command.errors));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return make_error(ErrorCode::kIo, "no process could be started: {}", std::strerror(errno));
  if (child == 0) {
    const int errors_to = errors.valid() ? errors.get() : STDERR_FILENO;
    become(const_cast<char**>(arguments.data()), const_cast<char**>(environment.data()),
           output.valid() ? output.get() : errors_to, errors_to);
  }
  return ChildProcess(child);
}

ChildProcess::~ChildProcess() {
  if (process_ < 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

Result<int> ChildProcess::wait() {
  std::atomic<bool> ended{false}, asked{false};
  const pid_t child = process_;
  const InterruptHandler on_interrupt([child, &ended, &asked] {
    if (ended) return false;
    asked = true;
    if (!terminal_tells_child()) ::kill(child, SIGINT);
    return true;
  });
  // SIGTERM, or whatever else asks this process to end.
  const std::stop_callback on_stop(interrupted(), [child, &ended] {
    if (!ended) ::kill(child, SIGTERM);
  });
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return make_error(ErrorCode::kIo, "waiting for process {}: {}", child, std::strerror(errno));
  }
  ended = true;
  process_ = -1;
  interrupted_ = asked;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool ChildProcess::ended() const {
  siginfo_t info{};
  return process_ < 0 ||
         (::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0);
}

void ChildProcess::terminate() const {
  if (process_ > 0) ::kill(process_, SIGTERM);
}

std::string as_shell(const std::vector<std::string>& words) {
  std::string text = "butterfly";
  for (const std::string& word : words) {
    const bool plain =
        !word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%") ==
            std::string::npos;
    text += plain ? " " + word : " '" + word + "'";
  }
  return text;
}

}  // namespace butterfly::app
