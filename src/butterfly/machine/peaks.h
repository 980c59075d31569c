// The most this machine does of each thing that bounds a transformer, measured in well under a second and cached in
// a file. Everything that predicts time or quotes "percent of peak" uses these numbers. Thread-safe; two measurements
// at once disturb each other's result, nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/machine/isa.h"
#include "butterfly/machine/topology.h"

namespace butterfly {

class ThreadTeam;

struct Rates {
  double memory_read_gb_per_s = 0.0;  // 10^9 bytes per second out of buffers larger than most caches
  double fp32_gflops = 0.0;           // multiply and add count as two
  double int8_gops = 0.0;             // byte products and sums count as two; 0 where the ISA has no instruction
};

struct Peaks {
  Isa isa = Isa::kReference;
  int threads = 1;
  Rates one_thread;
  Rates team;  // of all `threads` together
};

/// What becomes of the time in which the threads waited for a CPU because the machine had other work.
enum class OtherWork {
  kCounts,      // the peak is what the threads get now
  kDiscounted,  // the peak of computing is what they would get alone, by their CPU time on the CPUs that affinity
                // and quota leave to this process (usable_threads())
};

struct PeakOptions {
  Isa isa = Isa::kReference;  // must be supported here
  int threads = 1;
  std::uint64_t buffer_bytes = std::uint64_t{256} << 20;  // read to measure memory; at most what can be allocated
  OtherWork other_work = OtherWork::kCounts;
};

/// Measures now, in about 0.2 s of all threads. Errors: kInvalidArgument (threads < 1, ISA not supported here),
/// kNoMemory.
Result<Peaks> measure_peaks(const PeakOptions& options);

/// What all threads together read out of the caches of one level, each out of its share of them.
struct CacheRate {
  int level = 0;            // 1 is nearest to the core
  std::uint64_t bytes = 0;  // of all caches of that level
  double gb_per_s = 0.0;
};

/// Nearest first; about 0.1 s; a level less than twice as large as the one before is left out. Errors: as
/// measure_peaks().
Result<std::vector<CacheRate>> measure_cache_rates(Isa isa, int threads, const std::vector<CacheLevel>& caches);

/// The same, kept as peaks are.
Result<std::vector<CacheRate>> cached_cache_rates(Isa isa, int threads, const Topology& topology);
/// In a recording, as "cache.l2.gb_per_s" and "cache.l2.bytes"; nothing where nobody records or nothing is known.
void set_cache_facts(Isa isa, int threads, const Topology& topology);
std::string serialize(const std::vector<CacheRate>& rates);
std::optional<std::vector<CacheRate>> parse_cache_rates(const std::string& text);

/// What it costs to give a team something to do, at the median: right after the last time, and beyond that where its
/// threads have gone to sleep meanwhile. A few milliseconds, at each call. A team of one costs nothing.
struct TeamLatency {
  double dispatch_us = 0.0;
  double wake_us = 0.0;
};
TeamLatency measure_team(ThreadTeam& team);
/// Of a team of its own: teams of this process that live meanwhile make it dearer than it is.
TeamLatency measure_team(int threads);

/// The cached result of an earlier call of this very program for the same CPU, ISA and number of threads, else measures
/// and caches (measurement_cache.h).
Result<Peaks> cached_peaks(const PeakOptions& options, const std::string& cpu_name);

/// Measures again with OtherWork::kDiscounted; the cache, where there is one, then has the larger of each number, as
/// other work on the machine makes a measurement too small. Errors: those of measure_peaks().
Result<Peaks> renewed_peaks(const PeakOptions& options, const std::string& cpu_name);

/// The cache file's text and back; nothing unless every number is there, finite and not negative.
std::string serialize(const Peaks& peaks);
std::optional<Peaks> parse_peaks(const std::string& text);

}  // namespace butterfly
