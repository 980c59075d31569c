#include "butterfly/machine/peaks.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "butterfly/base/clock.h"
#include "butterfly/base/statistics.h"
#include "butterfly/base/units.h"
#include "butterfly/machine/peak_loops.h"
#include "butterfly/machine/thread_team.h"
#include "butterfly/machine/topology.h"

namespace butterfly {
namespace {

constexpr int kRepeats = 3;                  // a peak is the best of them
constexpr double kSecondsPerRepeat = 0.004;  // at least: long against timer and wake-up, short for the user
constexpr double kSecondsOfMemory = 0.3;     // where one reading takes as long, it is enough
constexpr std::uint64_t kReadGranule = 512;  // PeakLoops::read

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return seconds_since(begin);
}

/// Keeps results alive without a fence in the timed loops.
std::atomic<std::uint64_t> sink{0};

const PeakLoops& loops_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return peak_loops_avx2();
  if (isa == Isa::kAvx512) return peak_loops_avx512();
  if (isa == Isa::kAmx) return peak_loops_amx();
#endif
  (void)isa;
  return peak_loops_reference();
}

/// A private mapping with huge pages where there are any.
class Buffer {
 public:
  explicit Buffer(std::uint64_t bytes) : bytes_(bytes) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return;
    madvise(address, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(address);
  }
  ~Buffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_;
};

double measure_memory(const PeakLoops& loops, ThreadTeam& team, const std::byte* data, std::uint64_t bytes) {
  double best = 1e30, spent = 0.0;
  const long granules = static_cast<long>(bytes / kReadGranule);
  for (int repeat = 0; repeat < kRepeats && spent < kSecondsOfMemory; ++repeat) {
    const double seconds = seconds_of([&] {
      team.run([&](int member) {
        const WorkRange range = split_work(granules, member, team.size());
        sink += loops.read(data + range.begin * static_cast<long>(kReadGranule),
                           static_cast<std::size_t>(range.end - range.begin) * kReadGranule);
      });
    });
    best = std::min(best, seconds);
    spent += seconds;
  }
  return static_cast<double>(bytes) / best * 1e-9;
}

/// CPU time of the member that needed most; where members outnumber the CPUs that affinity and quota leave, the time
/// that they need in turns.
double cpu_seconds_of(ThreadTeam& team, const auto& work) {
  std::vector<double> used(static_cast<std::size_t>(team.size()));
  team.run([&](int member) {
    const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    work();
    used[static_cast<std::size_t>(member)] = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
  });
  const double most = *std::max_element(used.begin(), used.end());
  return most * std::max(1.0, static_cast<double>(team.size()) / usable_threads());
}

/// 10^9 operations per second of all members together; work(iterations) does ops_per_iteration each.
double measure_rate(ThreadTeam& team, OtherWork other_work, double ops_per_iteration, const auto& work) {
  // The best of several decides about the length too: one late wake-up looks like work.
  for (long iterations = 1000;; iterations *= 4) {
    double best = 1e30;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const auto once = [&] { work(iterations); };
      const double seconds = other_work == OtherWork::kDiscounted ? cpu_seconds_of(team, once)
                                                                  : seconds_of([&] { team.run([&](int) { once(); }); });
      best = std::min(best, seconds);
    }
    if (best < kSecondsPerRepeat && iterations < (1L << 40)) continue;
    return ops_per_iteration * static_cast<double>(iterations) * team.size() / best * 1e-9;
  }
}

Rates measure_rates(const PeakLoops& loops, ThreadTeam& team, OtherWork other_work, const std::byte* data,
                    std::uint64_t bytes) {
  Rates rates;
  rates.memory_read_gb_per_s = measure_memory(loops, team, data, bytes);
  rates.fp32_gflops = measure_rate(team, other_work, loops.flops_per_iteration, [&](long iterations) {
    sink += loops.multiply_add(iterations, 0.25f) > 0.0f ? 1 : 0;
  });
  if (loops.dot_bytes != nullptr) {
    rates.int8_gops = measure_rate(team, other_work, loops.byte_ops_per_iteration, [&](long iterations) {
      sink += static_cast<std::uint64_t>(loops.dot_bytes(iterations, 3));
    });
  }
  return rates;
}

Status check_options(Isa isa, int threads) {
  if (threads < 1) {
    return make_error(ErrorCode::kInvalidArgument, "peaks need at least 1 thread, not {}", threads);
  }
  const std::vector<Isa>& supported = supported_isas();
  if (std::find(supported.begin(), supported.end(), isa) == supported.end()) {
    return make_error(ErrorCode::kInvalidArgument, "this machine does not support {}", to_string(isa));
  }
  return {};
}

/// Every member reads the same bytes again and again; no cache is shared by members on different cores but the last.
double measure_cache(const PeakLoops& loops, ThreadTeam& team, const std::byte* data, std::uint64_t bytes) {
  for (long passes = 1;; passes *= 2) {
    double best = 1e30;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      best = std::min(best, seconds_of([&] {
                        team.run([&](int) {
                          for (long i = 0; i < passes; ++i) sink += loops.read(data, bytes);
                        });
                      }));
    }
    if (best < kSecondsPerRepeat) continue;
    return static_cast<double>(bytes) * static_cast<double>(passes) * team.size() / best * 1e-9;
  }
}

}  // namespace

TeamLatency measure_team(int threads) {
  ThreadTeam team(threads);
  return measure_team(team);
}

TeamLatency measure_team(ThreadTeam& team) {
  constexpr int kRounds = 101;
  constexpr int kSleeps = 21;
  constexpr std::chrono::microseconds kPause{300};  // longer than a team's threads look for work
  // New threads begin on the CPU of their parent; the scheduler needs a few ticks to give each its own.
  constexpr double kWarmSeconds = 0.02;
  if (team.size() < 2) return {};
  const auto round_us = [&] { return 1e6 * seconds_of([&] { team.run([](int) {}); }); };
  std::vector<double> awake, asleep;
  for (double warm_us = 0.0; warm_us < 1e6 * kWarmSeconds;) warm_us += round_us();
  for (int i = 0; i < kRounds; ++i) awake.push_back(round_us());
  for (int i = 0; i < kSleeps; ++i) {
    std::this_thread::sleep_for(kPause);
    asleep.push_back(round_us());
  }
  const double dispatch_us = median(std::move(awake));
  return {.dispatch_us = dispatch_us, .wake_us = std::max(median(std::move(asleep)) - dispatch_us, 0.0)};
}

Result<Peaks> measure_peaks(const PeakOptions& options) {
  BF_TRY(check_options(options.isa, options.threads));
  const std::uint64_t bytes = std::max(options.buffer_bytes / kReadGranule, std::uint64_t{1}) * kReadGranule;
  const Buffer buffer(bytes);
  if (buffer.data() == nullptr) {
    return make_error(ErrorCode::kNoMemory, "the system refused {} for measuring memory", format_bytes(bytes));
  }
  const PeakLoops& loops = loops_of(options.isa);
  Peaks peaks{.isa = options.isa, .threads = options.threads, .one_thread = {}, .team = {}};
  ThreadTeam team(options.threads);
  // Written by the threads that will read it, so that each part lies in its reader's memory.
  team.run([&](int member) {
    const WorkRange range = split_work(static_cast<long>(bytes / kReadGranule), member, team.size());
    std::memset(buffer.data() + range.begin * static_cast<long>(kReadGranule), 1,
                static_cast<std::size_t>(range.end - range.begin) * kReadGranule);
  });
  peaks.team = measure_rates(loops, team, options.other_work, buffer.data(), bytes);
  if (options.threads == 1) {
    peaks.one_thread = peaks.team;
  } else {
    ThreadTeam one(1);
    peaks.one_thread = measure_rates(loops, one, options.other_work, buffer.data(),
                                     bytes / static_cast<unsigned>(options.threads) / kReadGranule * kReadGranule);
  }
  return peaks;
}

Result<std::vector<CacheRate>> measure_cache_rates(Isa isa, int threads, const std::vector<CacheLevel>& caches) {
  constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
  BF_TRY(check_options(isa, threads));
  std::vector<CacheRate> rates;
  ThreadTeam team(threads);
  std::uint64_t nearer = 0;
  for (const CacheLevel& cache : caches) {
    // Half of one: what else is in it stays. Less than two of the nearer ones would be read from those.
    const std::uint64_t bytes = std::min(cache.bytes / 2, kMost) / kReadGranule * kReadGranule;
    if (bytes < kReadGranule || bytes < 2 * nearer) continue;
    const Buffer buffer(bytes);
    if (buffer.data() == nullptr) {
      return make_error(ErrorCode::kNoMemory, "the system refused {} for measuring caches", format_bytes(bytes));
    }
    std::memset(buffer.data(), 1, bytes);
    rates.push_back({.level = cache.level,
                     .bytes = cache.bytes * static_cast<std::uint64_t>(std::max(cache.count, 1)),
                     .gb_per_s = measure_cache(loops_of(isa), team, buffer.data(), bytes)});
    nearer = cache.bytes;
  }
  return rates;
}

}  // namespace butterfly
