// What a study found, as plain values: every output writes these and nothing else. Seconds, bytes and FLOPs are per
// step where the name says so, else sums over the measured steps.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "butterfly/study/analysis/roof.h"
#include "butterfly/study/analysis/workload.h"

namespace butterfly::study {

/// A part of the wall time of a track. What neither its operations cover nor recording them is its rest.
struct PhaseTime {
  std::string name;
  double seconds = 0.0;
  double share = 0.0;  // of the track's wall time
  double rest_s = 0.0;
  double recording_s = 0.0;  // by the measured cost of a span; at most what operations do not cover
};

/// One operation in all steps and on all tracks. Times are those of the calling thread: `total_s` with what is inside,
/// `own_s` without.
struct OperatorTime {
  std::string name;  // "qkv", "qkv weight_gradient"
  std::string kind;  // "matmul", "operation", "communication", "wait"
  std::string type;  // of the weights; empty: none
  std::uint64_t calls = 0;
  double total_s = 0.0, own_s = 0.0;
  double share = 0.0;  // of the wall time of all tracks
  double flops = 0.0, bytes = 0.0;
  double gflops_per_s = 0.0, gb_per_s = 0.0;
  double intensity = 0.0;      // FLOPs per byte; 0: it has none
  double ridge = 0.0;          // the intensity from which on arithmetic is the limit; 0: unknown
  double share_of_roof = 0.0;  // least time that the machine would need, over the time taken; 0: unknown
  std::array<double, kCacheLevels> share_of_cache_roof{};  // the same with the bytes out of L1, L2, L3; 0: unknown
  double share_of_peak = 0.0;  // of arithmetic alone: lower than of its roof where memory is the limit; 0: unknown
  bool memory_bound = false;
};

struct LayerTime {
  int layer = 0;
  std::string track;
  double seconds_per_step = 0.0;
  double share = 0.0;  // of its track's wall time
  double flops_per_step = 0.0;
};

struct TrackTime {
  std::string name, process;
  bool scheduler = false;
  int steps = 0;
  Summary step_s{};
  double wall_s = 0.0;
  double busy_s = 0.0;           // computing, and the rest of its steps
  double communication_s = 0.0;  // that nothing hides
  double hidden_s = 0.0;         // communication on other threads of its process meanwhile
  double wait_s = 0.0;
  double idle_s = 0.0;  // between steps, in no span
  double flops = 0.0;
  std::vector<PhaseTime> phases{};  // their seconds are its wall time
};

/// What one thread did for a moment: an operation, communication, a wait.
struct TimelineBar {
  std::string track, name, kind;
  double begin_s = 0.0, end_s = 0.0;  // since the run began
};

struct WaitFor {
  std::string waiter, other;
  double seconds = 0.0;  // in which the one waited and the other was busy
  double share = 0.0;    // of the waiter's wall time
};

struct Efficiency {
  std::string type;             // that most FLOPs were computed in
  double flops_per_step = 0.0;  // hardware: with what was computed again
  double recomputed_per_step = 0.0;
  double bytes_per_step = 0.0;   // analytic
  double tokens_per_step = 0.0;  // 0: unknown
  double parameters = 0.0;       // active ones; 0: unknown
  double flops_per_parameter_token = 0.0;
  double flops_per_s = 0.0;
  double peak_flops = 0.0;  // 0: unknown, as are what follows from it
  double mfu = 0.0, hfu = 0.0;
  double intensity = 0.0;
  double ridge = 0.0;
  double gb_per_s = 0.0;
  double peak_gb_per_s = 0.0;
  std::array<double, kCacheLevels> cache_gb_per_s{};  // of L1, L2, L3; 0: unknown
  double bandwidth_share = 0.0;
  bool memory_bound = false;
};
/// "under 20 %", "20 to 40 %", "40 to 60 %", "over 60 %".
std::string mfu_band(double mfu);

/// Of the thread teams of all processes.
struct Launches {
  double per_step = 0.0, wakes_per_step = 0.0;
  double seconds_per_step = 0.0;  // of handing work out, as measured on idle threads
  double share = 0.0;             // of the step
  bool cost_known = false;
};

struct Allocations {
  double pool_per_step = 0.0, pool_misses_per_step = 0.0;
  double faults_per_step = 0.0;    // pages that the system had to map
  double system_s_per_step = 0.0;  // CPU time in the kernel, of all threads
};

struct LinkUse {
  std::string process, name;  // "send", "all_reduce"
  std::uint64_t messages = 0;
  double seconds = 0.0;
  double wait_s = 0.0;      // of them, for other members
  double estimate_s = 0.0;  // by the cost model, without waiting; 0: it has none
  double bytes = 0.0;       // that the computation needs
  double gb_per_s = 0.0;
  double bus_gb_per_s = 0.0;  // of a collective: what each link carries; 0: none
};

/// What the channels of a process counted in the range of steps.
struct WireUse {
  std::string process;
  double sent_per_step = 0.0, received_per_step = 0.0;  // bytes
  double messages_per_step = 0.0;
  double saved_per_step = 0.0;  // by packing
};

struct WorkloadStudy {
  WorkKind kind = WorkKind::kTrain;
  std::string selection;  // which steps
  Summary step_s{};       // of the lead track
  std::vector<TrackTime> tracks{};
  std::size_t lead = 0;
  std::vector<OperatorTime> operators{};  // longest first
  double matmul_share = 0.0;              // of all wall time
  int projections_per_layer = 0;          // separate matmuls for queries, keys and values; 0: unknown
  std::vector<LayerTime> layers{};
  Efficiency efficiency{};
  Launches launches{};
  Allocations allocations{};
  std::vector<LinkUse> links{};
  std::string estimate_basis{};  // the links that estimates are made with; empty: there are none
  std::vector<WireUse> wire{};
  std::vector<WaitFor> waits{};
  double on_the_way_share = 0.0;        // of the scheduler's time, in which it waited and nobody computed
  std::vector<TimelineBar> timeline{};  // of one step in the middle, on all tracks
  double load_balance_factor = 0.0;     // most busy over mean; 0: one track alone
  std::string straggler{};              // empty: none
};

struct MemoryPoint {
  double at_s = 0.0;
  double resident = 0.0;
  std::vector<double> held{};  // by owner
};

struct MemoryUse {
  std::string process;
  double peak = 0.0;                     // resident bytes
  std::map<std::string, double> held{};  // by owner, at the peak
  double files = 0.0;                    // resident then: the program, mapped files, memory shared with others
  double other = 0.0;                    // resident then beside both: heap and stacks in no owner's name
  double heap_free_share = 0.0;          // of the heap at the end: held by malloc and given to nobody
  double heap = 0.0;
  double growth_per_s = 0.0;  // of resident memory but the cache's while steps ran, by least squares
  double growth = 0.0;        // over that time
  double growth_fit = 0.0;    // of 1: how much of the change a straight line explains
  std::vector<MemoryPoint> timeline{};
};

struct ProcessUse {
  std::string name, host;
  double seconds = 0.0;
  double cpus_used = 0.0;        // while steps ran
  double threads = 0.0;          // of its team; 0: unknown
  double cpus = 0.0;             // of its machine; 0: unknown
  double usable_cpus = 0.0;      // of them, what affinity and quota leave to it; 0: unknown
  double run_queue_share = 0.0;  // of the time its threads wanted a CPU, they had none
  double recording_share = 0.0;  // of its seconds: what the spans cost, by the measured cost of one
  double clock_error_us = 0.0;
  std::uint64_t spans = 0, lost = 0;
};

enum class Trust : std::uint8_t { kQuiet, kDisturbed, kInconclusive };
std::string_view to_string(Trust trust);

struct Quality {
  Trust trust = Trust::kQuiet;
  double stolen_share = 0.0;  // the worst machine's
  double foreign_cpus = 0.0;  // CPUs that other programs used
  double run_queue_share = 0.0;
  double slowdown = 0.0;               // median of the timed loop over its best, less one
  std::vector<std::string> reasons{};  // sentences, worst first; empty where it is quiet
};

struct OtherTime {
  std::string process, name;
  double seconds = 0.0;
};

struct Study {
  std::map<std::string, std::string> facts{};  // of the process that asked
  std::string command{};
  int repeats = 1;
  double wall_s = 0.0;
  std::vector<WorkloadStudy> workloads{};
  std::vector<MemoryUse> memory{};
  std::vector<ProcessUse> processes{};
  std::vector<OtherTime> beside{};  // loading, checkpoints
  Quality quality{};
  std::vector<std::string> notes{};
};

}  // namespace butterfly::study
