// Nodes: machines, or processes on them, that can run a part of a model, and what each is capable of. Plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

/// What computes. There are kernels for processors alone.
enum class DeviceKind : std::uint8_t { kCpu };
const char* to_string(DeviceKind kind);

/// Measured, not read from a data sheet: by detect_capability() on the node itself, or by a worker that tells its
/// coordinator. Zero means unknown.
struct NodeCapability {
  double compute_gflops = 0.0;              // fp32, multiply and add count as two; all threads together
  double int8_gops = 0.0;                   // byte matmuls and sums, 10^9 per second
  double memory_gb = 0.0;                   // 10^9 bytes that a model may use
  double memory_bandwidth_gb_per_s = 0.0;   // reading: what bounds decoding
  double network_bandwidth_gb_per_s = 0.0;  // to other nodes, one way; a node alone does not know it
  DeviceKind device = DeviceKind::kCpu;
  int device_count = 1;           // processor packages
  int threads = 1;                // that compute
  std::string isa = "reference";  // the fastest instruction set in use: "reference", "avx2", "avx512", "amx"
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

/// The way from one node to another, by their ids.
struct NodeLink {
  std::string from{};
  std::string to{};
  double latency_us = 0.0;  // one way
  double gb_per_s = 0.0;
};

struct AskOptions {
  std::string credentials{};                  // folder of this node's certificate; as GeneratorOptions::credentials
  bool any_address = false;                   // talk to any address in plain text; as GeneratorOptions::any_address
  std::chrono::milliseconds timeout{60'000};  // for all answers together
};

/// What the workers at these addresses ("host:port") say of themselves; their ids are their addresses. They may be at
/// work. Errors: those of the credentials; kUnavailable or kTimeout naming the worker; kInvalidArgument for one that is
/// a coordinator.
Result<std::vector<Node>> ask_nodes(std::span<const std::string> addresses, const AskOptions& options = {});

/// Every link between these workers, as they measure it now or remember it from some minutes ago: a tenth of a second
/// each. Sets the network bandwidth of each to that of its slowest link to another host. Errors: those of ask_nodes();
/// kUnavailable naming two workers that do not reach each other.
Result<std::vector<NodeLink>> measure_links(std::span<Node> nodes, const AskOptions& options = {});

}  // namespace butterfly
