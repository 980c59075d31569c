// Nodes: machines, or processes on them, that can run a part of a model, and what each is capable of. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "butterfly/base/result.h"

namespace butterfly {

/// Measured, not read from a data sheet: by detect_capability() on the node itself. Zero means unknown.
struct NodeCapability {
  double memory_gb = 0.0;           // 10^9 bytes that a model may use
  double tflops = 0.0;              // fp32, all threads together
  double int8_tops = 0.0;           // byte matmuls and sums, 10^12 per second
  double bandwidth_gb_per_s = 0.0;  // reading memory: what bounds decoding
  int threads = 1;
  std::string isa = "reference";  // the fastest instruction set in use: "reference", "avx2", "avx512"
};

struct Node {
  std::string id{};       // unique in a registry
  std::string address{};  // "host:port" of its worker; empty for this process
  NodeCapability capability{};
};

struct DetectOptions {
  int threads = 0;  // 0: every thread that this process may use
};

/// This machine's capability. The first call on a machine measures for about half a second, later ones read a cache
/// (BUTTERFLY_CACHE=off: never). Errors: kInvalidArgument (threads, BUTTERFLY_ISA), kIo.
Result<NodeCapability> detect_capability(const DetectOptions& options = {});

}  // namespace butterfly
