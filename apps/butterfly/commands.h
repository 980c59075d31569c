// The subcommands: each adds itself to the command line and, when chosen, leaves what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stop_token>
#include <string>

#include "butterfly/base/result.h"

namespace butterfly::app {

/// What the chosen subcommand does; returns the process's exit code.
using Action = std::function<int()>;

inline constexpr int kExitOk = 0;
inline constexpr int kExitBadInput = 2;       // also usage errors and everything that a Result reports
inline constexpr int kExitInvalid = 3;        // a training run ended, and its audit says INVALID
inline constexpr int kExitInterrupted = 130;  // Ctrl-C or SIGTERM

void add_generate(CLI::App& app, Action& action);
void add_worker(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_perplexity(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_cluster(CLI::App& app, Action& action);
void add_train(CLI::App& app, Action& action);

/// Prints "butterfly: MESSAGE" on stderr. Returns kExitBadInput, or kExitInterrupted for kCancelled.
int fail(const Error& error);

/// The two faces of `butterfly inspect`: a model file, or this machine.
struct InspectOptions {
  std::string model;
  bool machine = false;
  bool json = false;
  bool tensors = false;
};
int inspect_model(const InspectOptions& options);
int inspect_machine(const InspectOptions& options);

/// Requested by the first Ctrl-C or SIGTERM; the second ends the process at once.
std::stop_token interrupted();

}  // namespace butterfly::app
