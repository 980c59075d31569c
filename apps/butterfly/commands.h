// The subcommands: each adds itself to the command line and, when chosen, leaves what to run.
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "butterfly/base/result.h"
#include "options/options.h"

namespace butterfly::app {

/// What the chosen subcommand does; returns the process's exit code.
using Action = std::function<int()>;

inline constexpr int kExitOk = 0;
inline constexpr int kExitBadInput = 2;       // also usage errors and everything that a Result reports
inline constexpr int kExitInvalid = 3;        // a training run ended, and its audit says INVALID
inline constexpr int kExitInterrupted = 130;  // Ctrl-C or SIGTERM; training: SIGUSR1
inline constexpr int kExitPipeClosed = 141;   // the reader of standard output went away: as a shell shows SIGPIPE

void add_chat(Command app, Action& action);
void add_serve(Command app, Action& action);
void add_generate(Command app, Action& action);
void add_worker(Command app, Action& action);
void add_inspect(Command app, Action& action);
void add_tokenize(Command app, Action& action);
void add_embed(Command app, Action& action);
void add_fill(Command app, Action& action);
void add_perplexity(Command app, Action& action);
void add_plan(Command app, Action& action);
void add_convert(Command app, Action& action);
void add_bench(Command app, Action& action);
void add_cluster(Command app, Action& action);
void add_train(Command app, Action& action);
void add_study(Command app, Action& action);

/// Prints "butterfly: MESSAGE" on stderr. Returns kExitBadInput, or kExitInterrupted for kCancelled.
int fail(const Error& error);

/// Makes `run` what is done when the command is chosen; an error of it goes to fail(). `missing` names what the command
/// line lacks, empty where it lacks nothing.
void run_later(Command command, Action& action, std::function<Result<int>()> run,
               std::function<std::string()> missing = {});

/// The two faces of `butterfly inspect`: a model file, or this machine.
struct InspectOptions {
  std::string model;
  bool machine = false;
  bool json = false;
  bool tensors = false;
  std::string quality, against, text;
  int window = 512;
};
int inspect_quality(const InspectOptions& options);
int inspect_model(const InspectOptions& options);
int inspect_machine(const InspectOptions& options);

/// Requested by the first Ctrl-C or SIGTERM; the second ends the process at once.
std::stop_token interrupted();

/// Requested by SIGUSR1, the early warning of a batch system: the run that this process takes part in shall save and
/// end. Only training heeds it; a SIGTERM that follows leaves the time to save.
std::stop_token warned();

/// While it lives, Ctrl-C asks it first: what returns true has dealt with it. Called on another thread; at most one.
class InterruptHandler {
 public:
  explicit InterruptHandler(std::function<bool()> handler);
  ~InterruptHandler();
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;
};

}  // namespace butterfly::app
