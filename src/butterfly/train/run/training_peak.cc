#include "butterfly/train/run/training_peak.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include "butterfly/base/clock.h"
#include "butterfly/machine/peaks.h"
#include "butterfly/machine/topology.h"
#include "butterfly/trace/trace.h"

namespace butterfly {
namespace {

constexpr std::int64_t kSide = 1024;
constexpr int kMatmuls = 8;

/// The processor's, by its fastest instruction set.
Result<Peaks> processor_peaks(int threads, PeakAge age) {
  BF_ASSIGN_OR_RETURN(const Topology topology, detect_topology());
  const PeakOptions options{.isa = supported_isas().back(), .threads = threads};
  BF_ASSIGN_OR_RETURN(const Peaks peaks, age == PeakAge::kKnown ? cached_peaks(options, topology.cpu_name)
                                                                : renewed_peaks(options, topology.cpu_name));
  trace::set_fact("cpu", topology.cpu_name);
  trace::set_fact("peak.fp32_gflops", peaks.team.fp32_gflops);
  trace::set_fact("peak.int8_gops", peaks.team.int8_gops);
  trace::set_fact("peak.memory_gb_per_s", peaks.team.memory_read_gb_per_s);
  set_cache_facts(supported_isas().back(), threads, topology);
  return peaks;
}

/// The best rate of one matmul of kSide^3, all threads together. Measured again, CPU time counts where it is less than
/// what passed: other work then had the CPUs.
Result<double> best_matmul_gflops(Precision precision, Isa isa, int threads, PeakAge age) {
  ThreadTeam team(threads);
  const std::unique_ptr<Gemm> gemm = make_gemm(precision, isa, team);
  constexpr auto kElements = static_cast<std::size_t>(kSide * kSide);
  constexpr unsigned short kOne = 0x3f80;  // as bf16
  const std::vector<unsigned short> a(kElements, kOne), b(kElements, kOne);
  std::vector<float> c(kElements);
  double best_s = 1e30;
  const int at_once = std::min(threads, usable_threads());
  for (int i = 0; i < kMatmuls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const double cpu_begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    BF_TRY(gemm->run({.m = kSide,
                      .n = kSide,
                      .k = kSide,
                      .a = a.data(),
                      .b = b.data(),
                      .c = c.data(),
                      .a_stride = kSide,
                      .b_stride = kSide,
                      .c_stride = kSide}));
    best_s = std::min(best_s, seconds_since(begin));
    if (age == PeakAge::kAgain) {
      best_s = std::min(best_s, (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin) / at_once);
    }
  }
  return 2.0 * static_cast<double>(kSide) * kSide * kSide / best_s * 1e-9;
}

}  // namespace

Result<TrainingPeak> measured_training_peak(Precision precision, Isa isa, int threads, PeakAge age) {
  static std::mutex mutex;  // one measurement at a time in this process
  const std::scoped_lock lock(mutex);
  BF_ASSIGN_OR_RETURN(const Peaks peaks, processor_peaks(threads, age));
  const TrainingPeak fp32{peaks.team.fp32_gflops, fmt::format("fp32 multiply-adds in registers, {} threads", threads)};
  if (precision == Precision::kFloat32) {
    trace::set_fact("peak.train_fp32_gflops", fp32.gflops);
    return fp32;
  }
  static std::map<int, double> known;
  if (age == PeakAge::kAgain || !known.contains(threads)) {
    BF_ASSIGN_OR_RETURN(const double measured, best_matmul_gflops(precision, isa, threads, age));
    known[threads] = std::max(known[threads], measured);
  }
  // Without instructions for bf16 the matmuls multiply as fp32 does, and that is the roof.
  const double gflops = std::max(known[threads], fp32.gflops);
  trace::set_fact("peak.train_bf16_gflops", gflops);
  if (gflops == fp32.gflops) return fp32;
  return TrainingPeak{
      gflops, fmt::format("best of {} {} matmuls of {}^3, {} threads", kMatmuls, to_string(precision), kSide, threads)};
}

void record_latency(ThreadTeam& team) {
  if (!trace::recording()) return;
  const TeamLatency latency = measure_team(team);
  trace::set_fact("team.dispatch_us", latency.dispatch_us);
  trace::set_fact("team.wake_us", latency.wake_us);
}

}  // namespace butterfly
