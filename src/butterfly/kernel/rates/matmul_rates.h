// How fast this machine multiplies with weights of each type, by the very kernels that run models: one row over weights
// that no cache holds and over some that caches hold, and many rows at once. Measured once for a program, machine,
// instruction set and number of threads, and cached. Thread-safe; two measurements at once disturb each other's result,
// nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/node.h"

namespace butterfly {

struct MatmulOptions {
  Isa isa = Isa::kReference;  // must be supported here
  int threads = 1;
  // Weights of one type, packed: more than caches hold, also those that are shared with other machines of one host.
  // Twice as much memory is needed for a moment.
  std::uint64_t weight_bytes = std::uint64_t{256} << 20;
  std::uint64_t prefill_weight_bytes = std::uint64_t{32} << 20;
  std::int64_t prefill_rows = 128;
  double seconds_max = 0.3;  // of a figure's matmuls; where they would take longer, fewer weights are multiplied with
};

/// Measures now: f32, f16, bf16, q8_0, q4_0 and attention over each type of cache, in a few seconds, on a slow machine
/// too. Errors: kInvalidArgument (threads < 1, ISA not supported here), kNoMemory.
Result<std::vector<MatmulRate>> measure_matmuls(const MatmulOptions& options);

/// The cached rates of an earlier call, else measures and caches. Where there is no cache, or nothing could be
/// measured, none: who starts often without a cache would pay for it each time. A MatmulMeasurement. What is measured
/// in less memory than MatmulOptions ask for is not kept for others.
std::vector<MatmulRate> remembered_matmuls(Isa isa, int threads, const std::string& cpu_name,
                                           std::uint64_t memory_bytes = ~std::uint64_t{0});

/// The cache file's text and back; nothing unless every number is there, finite and not negative.
std::string serialize(const std::vector<MatmulRate>& rates);
std::optional<std::vector<MatmulRate>> parse_matmuls(const std::string& text);

}  // namespace butterfly
