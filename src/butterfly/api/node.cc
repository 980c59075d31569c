#include "butterfly/node.h"

#include <cmath>

#include "butterfly/api/convert.h"

namespace butterfly {

Result<NodeDescriptor> to_descriptor(const Node& node) {
  const NodeCapability& capability = node.capability;
  for (double value : {capability.memory_gb, capability.tflops, capability.int8_tops, capability.bandwidth_gb_per_s}) {
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
  descriptor.memory_read_gb_per_s = capability.bandwidth_gb_per_s;
  descriptor.fp32_gflops = capability.tflops * 1000.0;
  descriptor.int8_gops = capability.int8_tops * 1000.0;
  return descriptor;
}

NodeCapability to_capability(const NodeDescriptor& descriptor) {
  return {.memory_gb = static_cast<double>(descriptor.memory_bytes) / kGiga,
          .tflops = descriptor.fp32_gflops / 1000.0,
          .int8_tops = descriptor.int8_gops / 1000.0,
          .bandwidth_gb_per_s = descriptor.memory_read_gb_per_s,
          .threads = descriptor.threads,
          .isa = std::string(to_string(descriptor.isa))};
}

Result<NodeCapability> detect_capability(const DetectOptions& options) {
  BF_ASSIGN_OR_RETURN(const NodeDescriptor node, measure_node({.threads = options.threads}));
  return to_capability(node);
}

}  // namespace butterfly
