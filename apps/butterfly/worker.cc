// butterfly worker: offers this machine to a coordinator.
#include "butterfly/cluster/worker/worker_server.h"

#include <cstdio>
#include <future>
#include <thread>

#include "butterfly/base/log.h"
#include "butterfly/base/units.h"
#include "butterfly/infer/config/worker_config.h"
#include "butterfly/kernel/rates/matmul_rates.h"
#include "butterfly/machine/node.h"
#include "butterfly/machine/topology.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/stage/stage_host.h"
#include "butterfly/train/ranks/train_host.h"
#include "commands.h"
#include "options/key_flags.h"
#include "shared/access.h"
#include "shared/load_display.h"

namespace butterfly::app {
namespace {

struct WorkerCommand {
  std::string file;
  KeyFlags<WorkerConfig> flags;
};

Result<WorkerConfig> read_config(const WorkerCommand& command) {
  WorkerConfig config;
  if (!command.file.empty()) {
    BF_TRY(read_keys_file(command.file, "settings as TOML", bind_keys(worker_keys(), config)));
  }
  BF_TRY(command.flags.apply(config));
  BF_TRY(validate(config));
  return config;
}

/// More than the machine, or the control group of this process, has is offered by nobody: the kernel would end the
/// worker in the middle of a run.
Status limit_memory(WorkerConfig& config) {
  if (config.memory_bytes == 0) return {};
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  const std::uint64_t limit = topology.memory_is_limited ? topology.offered_memory_bytes() : topology.memory_bytes;
  if (config.memory_bytes <= limit) return {};
  log().warn(
      "--memory {} is more than the {} that this machine, or the control group of this process, has: they are offered",
      format_bytes(config.memory_bytes), format_bytes(limit));
  config.memory_bytes = limit;
  return {};
}

/// What is said of this machine to coordinators, as the settings want it.
NodeDescriptor adjusted(NodeDescriptor node, const WorkerConfig& config) {
  node = scaled(std::move(node), config.emulate);
  node.emulated_speed = config.emulate;
  if (config.memory_bytes > 0) node.memory_bytes = config.memory_bytes;
  return node;
}

/// Serves while this machine's speed is measured, which takes a while when the program runs here for the first time.
Result<int> serve(WorkerOptions options, StageHost& host, const WorkerConfig& config) {
  std::promise<Result<NodeDescriptor>> measuring;
  options.measured = measuring.get_future().share();
  const auto measured = options.measured;
  BF_ASSIGN_OR_RETURN(const std::unique_ptr<WorkerServer> server, WorkerServer::create(options, host));
  std::stop_source stop;
  const std::stop_callback on_interrupt(interrupted(), [&stop] { stop.request_stop(); });
  constexpr std::chrono::milliseconds kRemembered{300};  // what was measured before is there sooner
  const std::string address = server->address();
  const std::jthread thread([&, promise = std::move(measuring)]() mutable {
    const auto matmuls = [](Isa isa, int threads, const std::string& cpu_name) -> std::vector<MatmulRate> {
      const auto machine = detect_topology();
      if (!machine) return {};
      return remembered_matmuls(isa, threads, cpu_name, machine->offered_memory_bytes());
    };
    auto node = measure_node({.isa = options.node.isa, .threads = options.node.threads, .matmuls = matmuls});
    if (!node) stop.request_stop();
    if (node) node = adjusted(std::move(*node), config);
    if (node) set_facts(*node);
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
  BF_ASSIGN_OR_RETURN(WorkerConfig config, read_config(command));
  BF_TRY(limit_memory(config));
  const int threads = config.threads > 0 ? config.threads : usable_threads();
  BF_ASSIGN_OR_RETURN(const Isa isa, choose_isa());
  WorkerOptions options = config.server;
  BF_ASSIGN_OR_RETURN(options.access, open_access(config.access));
  options.content = {.bytes = content_bytes, .hash = content_hash, .paths = content_paths};
  BF_ASSIGN_OR_RETURN(options.node, unmeasured_node({.isa = isa, .threads = threads}));
  options.node = adjusted(std::move(options.node), config);
  // Emulated nodes share cores: one that looks again and again takes the time of those that compute.
  if (config.emulate < 1.0) options.spin = std::chrono::microseconds(0);
  LoadDisplay display;
  StageHost host({.threads = threads,
                  .isa = isa,
                  .weight_bytes_max = options.node.memory_bytes,
                  .packed_folder = config.packed_folder,
                  .emulated_speed = config.emulate,
                  .progress = [&display](const LoadProgress& progress) { display.show(progress); }});
  TrainHost ranks({.threads = threads,
                   .isa = isa,
                   .token_bytes_max = options.node.memory_bytes,
                   .directory = options.model_directory,
                   .content = options.content,
                   .shared_memory = options.shared_memory});
  // Training computes at this machine's own speed.
  if (config.train && config.emulate == 1.0) options.ranks = &ranks;
  return serve(std::move(options), host, config);
}

}  // namespace

void add_worker(Command app, Action& action) {
  auto sub = app.add_subcommand("worker",
                                "Offer this machine's memory and speed to `generate --workers` and `train --workers`");
  auto command = std::make_shared<WorkerCommand>();
  add_config_option(sub, command->file, "docs/configuration.md");
  command->flags.add(sub, worker_keys());
  sub.footer(
      "Serves one coordinator at a time and waits for the next, weights kept. Ctrl-C or SIGTERM: asks the coordinator "
      "to go on without this worker, serves until it does, and ends; a second one ends it at once. Every key of the "
      "file "
      "of -c is a flag, and the other way round.");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
