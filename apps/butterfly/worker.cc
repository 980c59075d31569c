// butterfly worker: offers this machine to a coordinator.
#include "butterfly/base/units.h"
#include "butterfly/cluster/worker/worker_server.h"

#include <cstdio>
#include <future>
#include <thread>

#include "butterfly/kernel/inference/matmul_rates.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/train/ranks/train_host.h"
#include "commands.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

struct WorkerCommand {
  std::string listen = "127.0.0.1:0";
  std::string join;
  std::string model_dir;
  std::string memory;
  int threads = 0;
  double emulate = 1.0;
  bool shared_memory = true;
  bool train = true;
  AccessOptions access;
};

/// What is said of this machine to coordinators, as the command line wants it.
NodeDescriptor adjusted(NodeDescriptor node, const WorkerCommand& command) {
  node = scaled(std::move(node), command.emulate);
  node.emulated_speed = command.emulate;
  if (!command.memory.empty()) node.memory_bytes = parse_bytes(command.memory);
  return node;
}

/// Serves while this machine's speed is measured, which takes a while when the program runs here for the first time.
Result<int> serve(WorkerOptions options, StageHost& host, const WorkerCommand& command) {
  std::promise<Result<NodeDescriptor>> measuring;
  options.measured = measuring.get_future().share();
  const auto measured = options.measured;
  BF_ASSIGN_OR_RETURN(const std::unique_ptr<WorkerServer> server, WorkerServer::create(options, host));
  std::stop_source stop;
  const std::stop_callback on_interrupt(interrupted(), [&stop] { stop.request_stop(); });
  constexpr std::chrono::milliseconds kRemembered{300};  // what was measured before is there sooner
  const std::string address = server->address();
  const std::jthread thread([&, promise = std::move(measuring)]() mutable {
    auto node = measure_node({.isa = options.node.isa, .threads = options.node.threads, .matmuls = remembered_matmuls});
    if (!node) stop.request_stop();
    if (node) node = adjusted(std::move(*node), command);
    promise.set_value(std::move(node));
  });
  const std::jthread telling([&] {
    if (measured.wait_for(kRemembered) == std::future_status::ready) {
      if (measured.get())
        std::fprintf(stderr, "listening on %s (%s)\n", address.c_str(), describe(*measured.get()).c_str());
      return;
    }
    std::fprintf(stderr, "listening on %s (measuring this machine's speed, about 5 s, once)\n", address.c_str());
    if (measured.get()) std::fprintf(stderr, "measured: %s\n", describe(*measured.get()).c_str());
  });
  BF_TRY(server->run(stop.get_token()));
  if (!measured.get()) return tl::unexpected(measured.get().error());
  std::fprintf(stderr, "worker on %s ended\n", address.c_str());
  return kExitOk;
}

Result<int> run(const WorkerCommand& command) {
  if (command.emulate < 1.0 && command.threads != 1) {
    return make_error(ErrorCode::kInvalidArgument, "--emulate {} needs --threads 1, not {}", command.emulate,
                      command.threads);
  }
  const int threads = command.threads > 0 ? command.threads : usable_threads();
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  WorkerOptions options;
  options.listen = command.listen;
  BF_ASSIGN_OR_RETURN(options.access, open_access(command.access));
  options.join = command.join;
  options.shared_memory = command.shared_memory ? SharedMemoryUse::kAllowed : SharedMemoryUse::kForbidden;
  options.model_directory = command.model_dir;
  options.content = {.bytes = content_bytes, .hash = content_hash};
  BF_ASSIGN_OR_RETURN(options.node, unmeasured_node({.isa = isa, .threads = threads}));
  options.node = adjusted(std::move(options.node), command);
  // Emulated nodes share cores: one that looks again and again takes the time of those that compute.
  if (command.emulate < 1.0) options.spin = std::chrono::microseconds(0);
  if (!command.memory.empty() && options.node.memory_bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument, "--memory {} is no size such as 4G or 512M", command.memory);
  }
  StageHost host({.threads = threads,
                  .isa = isa,
                  .weight_bytes_max = options.node.memory_bytes,
                  .emulated_speed = command.emulate});
  TrainHost ranks({.threads = threads,
                   .isa = isa,
                   .token_bytes_max = options.node.memory_bytes,
                   .directory = options.model_directory,
                   .content = options.content,
                   .shared_memory = options.shared_memory});
  // Training computes at this machine's own speed.
  if (command.train && command.emulate == 1.0) options.ranks = &ranks;
  return serve(std::move(options), host, command);
}

}  // namespace

void add_worker(Command app, Action& action) {
  auto sub = app.add_subcommand("worker",
                                "Offer this machine's memory and speed to `generate --workers` and `train --workers`");
  auto command = std::make_shared<WorkerCommand>();
  sub.add_option("--listen", command->listen,
                 "HOST:PORT; port 0: the system chooses; other than loopback only with credentials or --insecure")
      .show_default();
  add_access_options(sub, command->access);
  sub.add_option("-t,--threads", command->threads, "Threads to compute with [all cores]").in_range(1, 1024);
  sub.add_option(
      "--model-dir", command->model_dir,
      "Take weights, and tokens to train on, from a file below this folder that has the coordinator's content");
  sub.add_option("--memory", command->memory, "Memory that a plan may use here, such as 4G [what is available]");
  sub.add_option("--emulate", command->emulate,
                 "Play a machine of this share of one thread's speed, to try a plan for slower nodes; with --threads 1")
      .in_range(0.01, 1.0)
      .show_default();
  sub.add_flag("!--no-shared-memory", command->shared_memory,
               "Reach members of a tensor group, and other ranks, on this host over connections too");
  sub.add_flag("!--no-train", command->train, "Take part in no training run (train --workers)");
  sub.add_option("--join", command->join,
                 "HOST:PORT of a coordinator (generate --join-at HOST:PORT) that shall use this worker");
  sub.footer(
      "Serves one coordinator at a time and waits for the next, weights kept. Ctrl-C or SIGTERM: asks the coordinator "
      "to go on without this worker, serves until it does, and ends; a second one ends it at once.");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
