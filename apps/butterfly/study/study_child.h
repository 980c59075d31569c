// A command of this program that is run with recording on, as a process of its own.
#pragma once

#include <string>
#include <vector>

#include "commands.h"
#include "shared/child_process.h"

namespace butterfly::app {

struct ChildRun {
  std::vector<std::string> words{};        // the subcommand and its options
  std::string recordings{};                // folder that is there
  std::vector<std::string> environment{};  // NAME=VALUE, beside this process's
  std::string output{};                    // file for what it prints; empty: stderr, as stdout has the report alone
};

/// Waits for it; Ctrl-C and SIGTERM go to it. Its exit code, 128 and the signal where one ended it. Errors: kIo.
Result<int> run_recorded(const ChildRun& run);

/// Leaves no recordings of an earlier study in a folder, and makes it. Errors: kIo.
Status make_empty(const std::string& folder);

/// Takes a leading "butterfly" away, with its path. What a command line lacks that should end in a command; empty:
/// nothing.
std::string missing_command(std::vector<std::string>& words);

}  // namespace butterfly::app
