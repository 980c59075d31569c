// How fast and how large a node is, and a link between two: all that planning knows about the real world. Plain
// values, thread-safe; they travel from workers to the coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"

namespace butterfly {

/// What a node reaches in matmuls with weights of one type, all threads together: the two ends of a roofline.
struct MatmulRate {
  std::string type{};            // of the weights, "q4_0"; or one of kAttention
  double decode_gb_per_s = 0.0;  // bytes of weights that one row passes per second
  double prefill_gflops = 0.0;   // with many rows at once; multiply and add count as two
  double cached_gb_per_s = 0.0;  // as decode_gb_per_s, of kCachedWeights that are read again and again; 0: unknown
  friend bool operator==(const MatmulRate&, const MatmulRate&) = default;
};

/// Bytes of weights that the caches of any machine worth planning for hold.
inline constexpr double kCachedWeights = 8 << 20;

/// Stands for the type where keys and values take the place of weights: as halves, or in the other types of a cache.
inline constexpr std::string_view kAttention = "attention";
inline constexpr std::string_view kAttentionF32 = "attention_f32";
inline constexpr std::string_view kAttentionQ8_0 = "attention_q8_0";
constexpr bool is_attention(std::string_view type) {
  return type == kAttention || type == kAttentionF32 || type == kAttentionQ8_0;
}

struct NodeDescriptor {
  std::string name{};
  std::string address{};  // "host:port", empty for threads of this process
  Isa isa = Isa::kReference;
  int threads = 1;
  std::uint64_t memory_bytes = 0;     // that a plan may use
  double memory_read_gb_per_s = 0.0;  // all threads together, as the next two
  double fp32_gflops = 0.0;
  double training_gflops = 0.0;  // reached by matmuls of a training step; 0: not measured
  double int8_gops = 0.0;        // 0 where unknown or without an instruction
  double dispatch_us = 0.0;      // that it takes to hand a kernel to all threads and to collect them; 0: not counted
  double wake_us = 0.0;          // the same, beyond that, where the threads sleep; 0: not counted
  double emulated_speed = 1.0;   // below 1: a slower machine played by one that is 1 / this times as fast
  std::vector<MatmulRate> matmuls{};  // one for each type that was measured; may be empty
};

struct LinkDescriptor {
  double latency_us = 0.0;  // one way, to a receiver that looks for the message
  double gb_per_s = 0.0;
  double wake_us = 0.0;  // beyond that, where the receiver has waited for so long that it sleeps; 0: not counted
};

/// Rates of matmuls with the kernels of an ISA, measured or remembered: the kernels belong to a layer above.
using MatmulMeasurement = std::function<std::vector<MatmulRate>(Isa isa, int threads, const std::string& cpu_name)>;

struct MeasureOptions {
  std::string name{};  // empty: the host's name
  std::string address{};
  std::optional<Isa> isa{};     // nothing: choose_isa()
  int threads = 0;              // 0: every thread that this process may use
  MatmulMeasurement matmuls{};  // nothing: they stay unknown
};

/// This machine without its speed, at once. Errors: as measure_node().
Result<NodeDescriptor> unmeasured_node(const MeasureOptions& options = {});

/// This machine, with cached peaks; memory_bytes is what is available now. Errors: those of choose_isa() and
/// detect_topology(); kInvalidArgument for negative threads.
Result<NodeDescriptor> measure_node(const MeasureOptions& options = {});

/// A machine `speed` times as fast as `node`, with the same memory.
NodeDescriptor scaled(NodeDescriptor node, double speed);

/// One line for people.
std::string describe(const NodeDescriptor& node);

/// What recordings of this process say of its machine (docs/formats/recording.md).
void set_facts(const NodeDescriptor& node);

}  // namespace butterfly
