#include "butterfly/machine/node.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "butterfly/base/units.h"
#include "butterfly/machine/measurement_cache.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"

namespace butterfly {

namespace {

Result<NodeDescriptor> describe_node(const MeasureOptions& options, const Topology& topology) {
  if (options.threads < 0) {
    return make_error(ErrorCode::kInvalidArgument, "a node has at least 1 thread, not {}", options.threads);
  }
  NodeDescriptor node;
  if (options.isa) {
    node.isa = *options.isa;
  } else {
    BF_ASSIGN_OR_RETURN(node.isa, choose_isa());
  }
  node.name = options.name;
  if (node.name.empty()) {
    char host[256] = {};
    node.name = gethostname(host, sizeof(host) - 1) == 0 && host[0] != '\0' ? host : "localhost";
  }
  node.address = options.address;
  node.threads = options.threads > 0 ? options.threads : topology.usable_threads;
  node.memory_bytes = topology.offered_memory_bytes();
  return node;
}

}  // namespace

Result<NodeDescriptor> unmeasured_node(const MeasureOptions& options) {
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  return describe_node(options, topology);
}

Result<NodeDescriptor> measure_node(const MeasureOptions& options) {
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  BF_ASSIGN_OR_RETURN(NodeDescriptor node, describe_node(options, topology));
  PeakOptions peak_options{.isa = node.isa, .threads = node.threads};
  const std::uint64_t room = topology.offered_memory_bytes() / 4;
  const bool cramped = room < peak_options.buffer_bytes;  // what is measured so is not kept for others
  if (cramped) peak_options.buffer_bytes = room;
  BF_ASSIGN_OR_RETURN(const Peaks peaks,
                      cramped ? measure_peaks(peak_options) : cached_peaks(peak_options, topology.cpu_name));
  node.memory_read_gb_per_s = peaks.team.memory_read_gb_per_s;
  node.fp32_gflops = peaks.team.fp32_gflops;
  node.int8_gops = peaks.team.int8_gops;
  {
    // Workers that start together on one host would find each other's threads on their cores.
    const auto lock = MeasurementCache::lock_host();
    const TeamLatency latency = measure_team(node.threads);
    node.dispatch_us = latency.dispatch_us;
    node.wake_us = latency.wake_us;
  }
  if (options.matmuls) node.matmuls = options.matmuls(node.isa, node.threads, topology.cpu_name);
  return node;
}

NodeDescriptor scaled(NodeDescriptor node, double speed) {
  for (double* rate : {&node.memory_read_gb_per_s, &node.fp32_gflops, &node.training_gflops, &node.int8_gops}) {
    *rate *= speed;
  }
  for (MatmulRate& matmul : node.matmuls) {
    matmul.decode_gb_per_s *= speed;
    matmul.prefill_gflops *= speed;
    matmul.cached_gb_per_s *= speed;
  }
  for (double* latency : {&node.dispatch_us, &node.wake_us}) *latency /= speed;
  return node;
}

void set_facts(const NodeDescriptor& node) {
  trace::set_fact("node", node.name);
  trace::set_fact("isa", std::string(to_string(node.isa)));
  trace::set_fact("threads", node.threads);
  if (const auto machine = detect_topology()) {
    trace::set_fact("cpu", machine->cpu_name);
    set_cache_facts(node.isa, node.threads, *machine);
  }
  trace::set_fact("peak.memory_gb_per_s", node.memory_read_gb_per_s);
  trace::set_fact("peak.fp32_gflops", node.fp32_gflops);
  trace::set_fact("peak.int8_gops", node.int8_gops);
  trace::set_fact("team.dispatch_us", node.dispatch_us);
  trace::set_fact("team.wake_us", node.wake_us);
  if (node.emulated_speed < 1.0) trace::set_fact("emulated_speed", node.emulated_speed);
  for (const MatmulRate& matmul : node.matmuls) {
    trace::set_fact(fmt::format("matmul.{}.prefill_gflops", matmul.type), matmul.prefill_gflops);
    trace::set_fact(fmt::format("matmul.{}.decode_gb_per_s", matmul.type), matmul.decode_gb_per_s);
  }
}

std::string describe(const NodeDescriptor& node) {
  return fmt::format(
      "{}{}{}: {}, {} threads, {}, {:.1f} GB/s, {:.0f} GFLOP/s fp32, {:.0f} GOP/s int8{}", node.name,
      node.address.empty() ? "" : " at ", node.address, to_string(node.isa), node.threads,
      format_bytes(node.memory_bytes), node.memory_read_gb_per_s, node.fp32_gflops, node.int8_gops,
      node.emulated_speed < 1.0 ? fmt::format(", emulated at {} of this machine's speed", node.emulated_speed) : "");
}

}  // namespace butterfly
