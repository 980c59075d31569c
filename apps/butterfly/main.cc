// butterfly: runs transformers over many ordinary machines. One file per subcommand; this one only chooses.
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "commands.h"
#include "options.h"

namespace butterfly::app {
namespace {

std::stop_source& interrupt_source() {
  static std::stop_source source;
  return source;
}

/// Signals are taken by a thread of their own, so no handler interrupts a system call of the others.
void watch_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  interrupt_source();
  std::thread([signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    interrupt_source().request_stop();
    sigwait(&signals, &signal);
    _exit(kExitInterrupted);
  }).detach();
}

}  // namespace

std::stop_token interrupted() {
  return interrupt_source().get_token();
}

int fail(const Error& error) {
  std::fprintf(stderr, "butterfly: %s\n", error.message.c_str());
  return error.code == ErrorCode::kCancelled ? kExitInterrupted : kExitBadInput;
}

void run_later(Command command, Action& action, std::function<Result<int>()> run,
               std::function<std::string()> missing) {
  command.on_chosen([run = std::move(run), missing = std::move(missing), &action] {
    if (missing) {
      if (std::string what = missing(); !what.empty()) return what;
    }
    action = [run] {
      const Result<int> code = run();
      return code ? *code : fail(code.error());
    };
    return std::string();
  });
}

}  // namespace butterfly::app

int main(int argc, char** argv) {
  using namespace butterfly::app;
  watch_signals();
  CommandLine line("Runs and trains transformers over many ordinary machines and tells where the time goes.",
                   "butterfly " BUTTERFLY_VERSION);
  Command app = line.root();
  app.require_subcommand();
  app.footer(
      "Examples:\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" -n 100\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" --nodes 3\n"
      "  butterfly worker --listen 127.0.0.1:7001 &\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" --workers 127.0.0.1:7001\n"
      "  butterfly train --model tinytransformer-tiny --data synthetic:markov --steps 50\n"
      "Environment: BUTTERFLY_ISA=reference|avx2|avx512 forces an instruction set; "
      "BUTTERFLY_LOG=debug|info|warn|error.\n"
      "Exit codes: 0 done, 2 bad input or a failed operation (one sentence on stderr says which), 3 a training run is "
      "INVALID, "
      "130 interrupted.");
  Action action;
  add_generate(app, action);
  add_worker(app, action);
  add_inspect(app, action);
  add_tokenize(app, action);
  add_perplexity(app, action);
  add_plan(app, action);
  add_convert(app, action);
  add_cluster(app, action);
  add_train(app, action);
  add_bench(app, action);
  if (const std::optional<int> code = line.parse(argc, argv)) return *code;
  return action();
}
