// What this machine is made of: cores, caches, NUMA nodes, memory, as far as this process may use them. Affinity
// masks and the limits of control groups (containers, batch systems) are respected. Thread-safe: plain values.
#pragma once

#include <bitset>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

struct CacheLevel {
  int level = 0;            // 1 is nearest to the core; data and unified caches only
  std::uint64_t bytes = 0;  // of one cache
  int count = 0;
};

struct Topology {
  std::string cpu_name;
  int packages = 0;
  int cores = 0;
  int hardware_threads = 0;
  int usable_threads = 0;  // of these, what affinity and CPU quota leave to this process; at least 1
  int numa_nodes = 0;
  std::vector<CacheLevel> caches;            // ascending by level
  std::uint64_t memory_bytes = 0;            // installed, or the control group's limit where that is less
  std::uint64_t available_memory_bytes = 0;  // free or reclaimable at the time of the call
  bool memory_is_limited = false;            // by a control group: the kernel ends a process that takes more

  /// What may be promised to others: under a limit an eighth stays free, for what is under way while weights are
  /// loaded.
  std::uint64_t offered_memory_bytes() const {
    return memory_is_limited ? available_memory_bytes - available_memory_bytes / 8 : available_memory_bytes;
  }
};

/// Looks once at the machine; costs some milliseconds. Errors: kIo when the system tells nothing.
Result<Topology> detect_topology();

/// The second-level cache that kernels count on: BUTTERFLY_L2, as "1 MiB", where that is set and says a size, else what
/// the processor tells, else 1 MiB. Looked up once.
std::uint64_t l2_bytes();

/// Text for people, a few lines.
std::string describe(const Topology& topology);

/// Where a thread runs, as seen from anywhere: threads of one place take turns.
struct CorePlace {
  std::uint64_t machine = 0;  // of one start of one machine; 0: unknown
  std::int32_t cpu = -1;      // hardware thread
  bool known() const { return machine != 0 && cpu >= 0; }
  friend bool operator==(const CorePlace&, const CorePlace&) = default;
};

/// The processor of the calling thread, at this moment; costs some tens of nanoseconds.
CorePlace this_core();

/// What the control groups of a process leave to it. Nothing means no limit.
struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes;            // the smallest limit from the process's group up to the root
  std::optional<std::uint64_t> available_memory_bytes;  // the smallest (limit - used), file cache not counted as used
  std::optional<double> cpus;                           // the smallest quota, in CPUs
};

/// Reads versions 1 and 2. `membership` is the text of /proc/self/cgroup, `root` the mount, /sys/fs/cgroup.
CgroupLimits read_cgroup_limits(const std::string& membership, const std::filesystem::path& root);

/// Threads that can run at the same time under an affinity mask of that many CPUs and a quota: the quota is rounded up,
/// and at least 1 is left.
int threads_within(int affinity_cpus, std::optional<double> quota_cpus);

/// The same for this process, at the time of the call; what every command starts by default. Reads a few small files.
int usable_threads();

/// Hardware threads of this machine by their number; the first 1024.
using CpuSet = std::bitset<1024>;

/// What the affinity mask of the calling thread leaves to it.
CpuSet usable_cpus();

/// Whether threads with these masks can all run at the same moment, each on a CPU of its own. A mask with fewer CPUs
/// chooses first, the lowest that is free: no for some masks that overlap in part, although there is a way.
bool can_run_at_once(std::span<const CpuSet> masks);

}  // namespace butterfly
