// The numbers of a run, in the field's words and keys. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "butterfly/train/step.h"

namespace butterfly {

struct RunSummary {
  std::int64_t num_steps = 0;
  double avg_step_time = 0.0, min_step_time = 0.0, max_step_time = 0.0;  // s, without the first two steps
  double tokens_per_sec = 0.0, samples_per_sec = 0.0;
  double avg_loss = 0.0, final_loss = 0.0;
  std::uint64_t peak_memory_allocated = 0, avg_memory_allocated = 0;  // bytes that the run asked for
  std::uint64_t peak_memory_reserved = 0, avg_memory_reserved = 0;    // bytes resident
  StepPhases phases{};  // means
  double communication_hidden_s = 0.0;
  double flops_per_step = 0.0, flops_per_token = 0.0;
  std::string flops_convention{};
  double mfu = 0.0;  // share of peak_gflops
  double peak_gflops = 0.0;
  double network_kb_per_s = 0.0;
  double network_s = 0.0, network_s_variance = 0.0, compression_s = 0.0, compression_s_variance = 0.0;
};

std::string to_json(const RunSummary& summary);

}  // namespace butterfly
