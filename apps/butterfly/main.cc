// butterfly: runs transformers over many ordinary machines. One file per subcommand; this one only chooses.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "butterfly/base/text/one_line.h"
#include "butterfly/machine/usage/recorded_process.h"
#include "butterfly/model/files/mapped_file.h"
#include "commands.h"
#include "options/options.h"

namespace butterfly::app {
namespace {

std::stop_source& interrupt_source() {
  static std::stop_source source;
  return source;
}

std::stop_source& warning_source() {
  static std::stop_source source;
  return source;
}

/// A closed descriptor would be given to the next file or socket, and what is meant for standard output would go there.
/// In its place comes /dev/null, open the wrong way round, so that using it is an error as before.
void fill_closed_descriptors() {
  for (const int wanted : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(wanted, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", wanted == STDIN_FILENO ? O_WRONLY : O_RDONLY) != wanted) _exit(kExitBadInput);
  }
}

std::string limit_text(const rlimit& limit) {
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit.rlim_cur);
}

/// What libraries throw where the system gives no memory or no thread.
[[noreturn]] void end_with_a_sentence() {
  const auto thrown = std::current_exception();
  if (!thrown) std::abort();
  rlimit memory{}, threads{};
  (void)::getrlimit(RLIMIT_AS, &memory);
  (void)::getrlimit(RLIMIT_NPROC, &threads);
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "butterfly: there is not enough memory; the limit of this process (ulimit -v) is %s bytes\n",
                 limit_text(memory).c_str());
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "butterfly: the system refused a thread or another resource: %s; the limits are %s threads of this "
                 "user (ulimit -u) and %s bytes (ulimit -v)\n",
                 one_line(error.what()).c_str(), limit_text(threads).c_str(), limit_text(memory).c_str());
  } catch (...) {
    std::abort();
  }
  _exit(kExitBadInput);
}

struct HandlerSlot {
  std::mutex mutex;
  std::function<bool()> handler;
};

HandlerSlot& handler_slot() {
  static HandlerSlot slot;
  return slot;
}

bool handled_interrupt() {
  HandlerSlot& slot = handler_slot();
  const std::lock_guard lock(slot.mutex);
  return slot.handler && slot.handler();
}

/// Signals are taken by a thread of their own, so no handler interrupts a system call of the others.
void watch_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  interrupt_source();
  warning_source();
  handler_slot();
  std::thread([signals] {
    for (int taken = 0; taken < 2;) {
      int signal = 0;
      sigwait(&signals, &signal);
      if (signal == SIGINT && handled_interrupt()) continue;
      if (signal == SIGUSR1) {
        warning_source().request_stop();
        continue;
      }
      interrupt_source().request_stop();
      ++taken;
    }
    _exit(kExitInterrupted);
  }).detach();
}

}  // namespace

InterruptHandler::InterruptHandler(std::function<bool()> handler) {
  HandlerSlot& slot = handler_slot();
  const std::lock_guard lock(slot.mutex);
  slot.handler = std::move(handler);
}

InterruptHandler::~InterruptHandler() {
  HandlerSlot& slot = handler_slot();
  const std::lock_guard lock(slot.mutex);
  slot.handler = nullptr;
}

std::stop_token interrupted() {
  return interrupt_source().get_token();
}

std::stop_token warned() {
  return warning_source().get_token();
}

int fail(const Error& error) {
  std::fprintf(stderr, "butterfly: %s\n", one_line(error.message).c_str());
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
  fill_closed_descriptors();
  std::set_terminate(end_with_a_sentence);
  butterfly::explain_lost_pages(kExitBadInput);
  watch_signals();
  CommandLine line("Runs and trains transformers over many ordinary machines and tells where the time goes.",
                   "butterfly " BUTTERFLY_VERSION);
  Command app = line.root();
  app.require_subcommand();
  app.footer(
      "Examples:\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" -n 100\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" --nodes 3\n"
      "  butterfly chat -m model.gguf --system \"Answer briefly.\"\n"
      "  butterfly serve -m models/demo.gguf\n"
      "  butterfly worker --listen 127.0.0.1:7001 &\n"
      "  butterfly generate -m models/demo.gguf -p \"ROMEO:\" --workers 127.0.0.1:7001\n"
      "  butterfly train --model tinytransformer-tiny --data synthetic:markov --steps 50\n"
      "Environment: BUTTERFLY_ISA=reference|avx2|avx512|amx forces an instruction set; BUTTERFLY_L2=SIZE says how "
      "large the "
      "second-level cache is that they count on; BUTTERFLY_TUNE=off computes "
      "each matmul with it, even where an older one is faster; "
      "BUTTERFLY_LOG=debug|info|warn|error; BUTTERFLY_RECORD=FOLDER records where the time goes.\n"
      "Exit codes: 0 done, 2 bad input or a failed operation (one sentence on stderr says which), 3 a training run is "
      "INVALID, "
      "130 interrupted, 141 the reader of standard output went away.");
  Action action;
  add_generate(app, action);
  add_chat(app, action);
  add_serve(app, action);
  add_worker(app, action);
  add_inspect(app, action);
  add_tokenize(app, action);
  add_embed(app, action);
  add_fill(app, action);
  add_perplexity(app, action);
  add_plan(app, action);
  add_convert(app, action);
  add_cluster(app, action);
  add_train(app, action);
  add_bench(app, action);
  add_study(app, action);
  if (const std::optional<int> code = line.parse(argc, argv)) return *code;
  const butterfly::RecordedProcess recorded(argc > 1 ? argv[1] : "");
  return action();
}
