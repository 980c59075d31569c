#include "running.h"
#include "butterfly/model/format/open_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "butterfly/base/one_line.h"
#include "butterfly/base/read_file.h"
#include "butterfly/machine/topology.h"
#include "butterfly/plan/partition/strategy.h"
#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/codec.h"
#include "commands.h"

namespace butterfly::app {

namespace {

std::string strategy_names() {
  std::string names;
  for (const Strategy& strategy : strategies()) names += fmt::format("{}{}", names.empty() ? "" : ", ", strategy.name);
  return names;
}

/// Strategies whose choice depends on links.
bool looks_at_links(const std::string& split) {
  return split == "topology" || split == "tensor" || split == "hybrid" || split == "auto";
}

}  // namespace

void add_run_options(Command command, RunOptions& o) {
  command.add_option("-m,--model", o.model, "GGUF file, or Hugging Face directory").required();
  command.add_option("-t,--threads", o.threads, "Threads of each node in this process [all cores, shared by the nodes]")
      .in_range(1, 1024);
  auto nodes =
      command.add_option("--nodes", o.nodes, "Split over N nodes that are threads of this process").in_range(1, 256);
  command.add_option("--workers", o.workers, "Split over worker processes: HOST:PORT,...")
      .comma_separated()
      .excludes(nodes);
  command
      .add_option("--join-at", o.join_at,
                  "HOST:PORT where workers may join at any time (butterfly worker --join HOST:PORT)")
      .excludes(nodes);
  command.add_option("--heartbeat", o.heartbeat_ms, "Milliseconds between two questions whether a worker lives")
      .in_range(10, 60'000)
      .show_default();
  command.add_option("--dead-after", o.dead_after_ms, "Milliseconds of silence after which a worker is given up")
      .in_range(50, 600'000)
      .show_default();
  command
      .add_option("--recover-within", o.recover_within_s,
                  "Seconds to wait for a worker to come back or join where too few are left")
      .in_range(0, 86'400)
      .show_default();
  add_access_options(command, o.access);
  command
      .add_option("--split", o.split,
                  "How the work is shared out: " + strategy_names() + "; auto is uniform where a speed is unknown")
      .show_default();
  command.add_option("--goal", o.goal, "What auto, topology, tensor and hybrid look for: latency, throughput or memory")
      .one_of({"latency", "throughput", "memory"})
      .show_default();
  command.add_option("--custom", o.custom, "File of the plan that --split custom follows: lines of NODE FIRST-LAST")
      .existing_file();
  command.add_flag("--measure-links", o.measure_links,
                   "Measure the links first, a tenth of a second each; splits that depend on links do so anyway");
  command.add_option("--kv-type", o.kv_type, "Keys and values are cached as f32, f16, or auto: f32 for F32 models")
      .one_of({"auto", "f32", "f16"})
      .show_default();
  command
      .add_option("--wire-type", o.wire_type,
                  "Activations travel between nodes as f32, or smaller as f16 or q8_0, which changes the text")
      .one_of({"f32", "f16", "q8_0"})
      .show_default();
  command
      .add_option("--compress", o.compress,
                  "Pack activations without loss between machines: off, lz4, zstd, or auto where measured to save time")
      .one_of({"off", "auto", "lz4", "zstd"})
      .show_default();
  command.add_flag("-q,--quiet", o.quiet, "No progress and no summary on stderr");
}

Result<OpenModel> open_model(const RunOptions& options, int sequences) {
  const std::uint64_t begin = trace::now_ns();
  OpenModel open;
  BF_ASSIGN_OR_RETURN(open.checkpoint, open_checkpoint(options.model));
  DeploymentOptions deployment;
  if (!options.workers.empty() || !options.join_at.empty()) {
    BF_ASSIGN_OR_RETURN(deployment.access, open_access(options.access));
  }
  deployment.threads = options.threads > 0 ? options.threads : std::max(1, usable_threads() / options.nodes);
  deployment.nodes = options.nodes;
  deployment.workers = options.workers;
  deployment.join_at = options.join_at;
  deployment.heartbeat_ms = options.heartbeat_ms;
  deployment.dead_after_ms = options.dead_after_ms;
  deployment.recover_within_ms = std::int64_t{1000} * options.recover_within_s;
  deployment.stop = interrupted();
  deployment.split = options.split;
  BF_ASSIGN_OR_RETURN(deployment.goal, parse_plan_goal(options.goal));
  if (!options.custom.empty()) {
    BF_ASSIGN_OR_RETURN(const std::string text, read_file(options.custom, kAnySize));
    BF_ASSIGN_OR_RETURN(deployment.custom, parse_custom_plan(text));
  }
  deployment.measure_links = options.measure_links || looks_at_links(options.split);
  deployment.sequences = sequences;
  if (options.kv_type != "auto") deployment.kv_type = parse_dtype(options.kv_type);
  deployment.wire_type = *parse_dtype(options.wire_type);
  deployment.compression = *parse_compression(options.compress);
  if (!options.quiet) {
    deployment.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", one_line(line).c_str()); };
  }
  BF_ASSIGN_OR_RETURN(open.deployment, Deployment::create(open.checkpoint, deployment));
  open.load_s = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  return open;
}

}  // namespace butterfly::app
