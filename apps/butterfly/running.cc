#include "running.h"
#include "butterfly/model/format/open_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "butterfly/base/one_line.h"
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

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) return make_error(ErrorCode::kNotFound, "{} cannot be read", path);
  return text;
}

}  // namespace

void add_run_options(CLI::App& command, RunOptions& o) {
  command.add_option("-m,--model", o.model, "GGUF file, or Hugging Face directory")->required();
  command
      .add_option("-t,--threads", o.threads, "Threads of each node in this process [all cores, shared by the nodes]")
      ->check(CLI::Range(1, 1024));
  auto* nodes = command.add_option("--nodes", o.nodes, "Split over N nodes that are threads of this process")
                    ->check(CLI::Range(1, 256));
  command.add_option("--workers", o.workers, "Split over worker processes: HOST:PORT,...")
      ->delimiter(',')
      ->excludes(nodes);
  command
      .add_option("--join-at", o.join_at,
                  "HOST:PORT where workers may join at any time (butterfly worker --join HOST:PORT)")
      ->excludes(nodes);
  command.add_option("--heartbeat", o.heartbeat_ms, "Milliseconds between two questions whether a worker lives")
      ->check(CLI::Range(10, 60'000))
      ->capture_default_str();
  command.add_option("--dead-after", o.dead_after_ms, "Milliseconds of silence after which a worker is given up")
      ->check(CLI::Range(50, 600'000))
      ->capture_default_str();
  command
      .add_option("--recover-within", o.recover_within_s,
                  "Seconds to wait for a worker to come back or join where too few are left")
      ->check(CLI::Range(0, 86'400))
      ->capture_default_str();
  add_access_options(command, o.access);
  command
      .add_option("--split", o.split,
                  "How the work is shared out: " + strategy_names() + "; auto is uniform where a speed is unknown")
      ->capture_default_str();
  command
      .add_option("--goal", o.goal, "What auto, topology, tensor and hybrid look for: latency, throughput or memory")
      ->check(CLI::IsMember({"latency", "throughput", "memory"}))
      ->capture_default_str();
  command.add_option("--custom", o.custom, "File of the plan that --split custom follows: lines of NODE FIRST-LAST")
      ->check(CLI::ExistingFile);
  command.add_flag("--measure-links", o.measure_links,
                   "Measure the links first, a tenth of a second each; splits that depend on links do so anyway");
  command.add_option("--kv-type", o.kv_type, "Keys and values are cached as f32, f16, or auto: f32 for F32 models")
      ->check(CLI::IsMember({"auto", "f32", "f16"}))
      ->capture_default_str();
  command
      .add_option("--wire-type", o.wire_type,
                  "Activations travel between nodes as f32, or smaller as f16 or q8_0, which changes the text")
      ->check(CLI::IsMember({"f32", "f16", "q8_0"}))
      ->capture_default_str();
  command
      .add_option("--compress", o.compress,
                  "Pack activations without loss between machines: off, lz4, zstd, or auto where measured to save time")
      ->check(CLI::IsMember({"off", "auto", "lz4", "zstd"}))
      ->capture_default_str();
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
    BF_ASSIGN_OR_RETURN(const std::string text, read_file(options.custom));
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
