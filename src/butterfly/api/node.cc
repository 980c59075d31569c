#include "butterfly/node.h"

#include <algorithm>
#include <cmath>

#include "butterfly/api/convert.h"
#include "butterfly/machine/topology.h"

namespace butterfly {

const char* to_string(DeviceKind /*kind*/) {
  return "cpu";
}

Result<NodeDescriptor> to_descriptor(const Node& node) {
  const NodeCapability& capability = node.capability;
  for (double value : {capability.memory_gb, capability.compute_gflops, capability.int8_gops,
                       capability.memory_bandwidth_gb_per_s, capability.network_bandwidth_gb_per_s}) {
    // Below 2^60 everything can be turned into bytes.
    if (!(value >= 0.0) || value > 1e9) {
      return make_error(ErrorCode::kInvalidArgument, "{}: a capability of {} is no number from 0 to 1e9", node.id,
                        value);
    }
  }
  NodeDescriptor descriptor{.name = node.id, .address = node.address};
  BF_ASSIGN_OR_RETURN(descriptor.isa, parse_isa(capability.isa));
  descriptor.threads = capability.threads;
  descriptor.memory_bytes = static_cast<std::uint64_t>(std::llround(capability.memory_gb * kGiga));
  descriptor.memory_read_gb_per_s = capability.memory_bandwidth_gb_per_s;
  descriptor.fp32_gflops = capability.compute_gflops;
  descriptor.int8_gops = capability.int8_gops;
  return descriptor;
}

NodeCapability to_capability(const NodeDescriptor& descriptor) {
  return {.compute_gflops = descriptor.fp32_gflops,
          .int8_gops = descriptor.int8_gops,
          .memory_gb = static_cast<double>(descriptor.memory_bytes) / kGiga,
          .memory_bandwidth_gb_per_s = descriptor.memory_read_gb_per_s,
          .threads = descriptor.threads,
          .isa = std::string(to_string(descriptor.isa))};
}

Result<NodeCapability> detect_capability(const DetectOptions& options) {
  BF_ASSIGN_OR_RETURN(const NodeDescriptor node, measure_node({.threads = options.threads}));
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  NodeCapability capability = to_capability(node);
  capability.device_count = std::max(1, topology.packages);
  return capability;
}

}  // namespace butterfly
