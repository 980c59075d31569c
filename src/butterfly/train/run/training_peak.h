// The most floating-point work that this machine's threads do in the precision of a run: what utilisation is a share
// of. Measured, never assumed. Thread-safe; two measurements at once disturb each other's result, nothing else.
#pragma once

#include <cstdint>
#include <string>

#include "butterfly/base/result.h"
#include "butterfly/kernel/gemm/gemm.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/thread_team.h"

namespace butterfly {

struct TrainingPeak {
  double gflops = 0.0;
  std::string source{};  // "fp32 multiply-adds in registers, 2 threads"
};

/// fp32: cached_peaks() of the fastest instruction set of this CPU. bf16: the best of several matmuls of 1024^3 by
/// make_gemm(), once for each number of threads of this process, and at least the peak of fp32, which a CPU without
/// instructions for bf16 multiplies with. kAgain measures now and keeps the larger: what passes 100 % of a peak may
/// have shown that the machine had other work while that was measured. Errors: those of both.
enum class PeakAge : std::uint8_t { kKnown, kAgain };
Result<TrainingPeak> measured_training_peak(Precision precision, Isa isa, int threads, PeakAge age = PeakAge::kKnown);

/// Into a recording: what handing work to this team costs. Nothing where nobody records.
void record_latency(ThreadTeam& team);

}  // namespace butterfly
