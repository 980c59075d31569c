// A command of this program, run as a process of its own. Used by one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly::app {

struct ChildCommand {
  std::vector<std::string> words{};        // the subcommand and its options
  std::vector<std::string> environment{};  // NAME=VALUE, instead of what this process has of that name
  std::string output{};                    // file for what it prints; empty: stderr, as stdout is the parent's
  std::string errors{};                    // file for its stderr; empty: the parent's
};

/// Killed and waited for where nobody did.
class ChildProcess {
 public:
  /// Errors: kIo.
  static Result<ChildProcess> start(const ChildCommand& command);

  ChildProcess(ChildProcess&& other) noexcept : process_(std::exchange(other.process_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  /// Ctrl-C and SIGTERM go to it meanwhile. Its exit code, 128 and the signal where one ended it. Errors: kIo.
  Result<int> wait();

  /// Whether it has ended; wait() tells how.
  bool ended() const;

  /// Whether Ctrl-C came while it was waited for, whatever the child made of it.
  bool interrupted_meanwhile() const { return interrupted_; }

  /// Asks it to end.
  void terminate() const;

 private:
  explicit ChildProcess(pid_t process) : process_(process) {}

  pid_t process_ = -1;
  bool interrupted_ = false;
};

/// What this process has, with NAME=VALUE of `instead` in place of what it has of that name.
std::vector<std::string> child_environment(const std::vector<std::string>& instead);

/// As exec takes them, null at the end; into `words`.
std::vector<char*> pointers_to(std::vector<std::string>& words);

/// As a shell would take it, for people to read.
std::string as_shell(const std::vector<std::string>& words);

}  // namespace butterfly::app
