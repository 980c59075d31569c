#include "butterfly/machine/topology.h"

#include <fmt/ranges.h>
#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <thread>
#include <type_traits>

#include "butterfly/base/read_file.h"
#include "butterfly/base/units.h"

namespace butterfly {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

Result<HwlocTopology> load_hwloc() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return make_error(ErrorCode::kIo, "hwloc cannot start");
  HwlocTopology topology(raw);
  if (hwloc_topology_load(raw) != 0) return make_error(ErrorCode::kIo, "hwloc cannot read this machine");
  return topology;
}

int count(hwloc_topology_t topology, hwloc_obj_type_t type) {
  return std::max(hwloc_get_nbobjs_by_type(topology, type), 0);
}

std::string read_cpu_name(hwloc_topology_t topology) {
  for (hwloc_obj_t object : {hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0), hwloc_get_root_obj(topology)}) {
    if (object == nullptr) continue;
    if (const char* name = hwloc_obj_get_info_by_name(object, "CPUModel")) return name;
  }
  return "unknown CPU";
}

std::vector<CacheLevel> read_caches(hwloc_topology_t topology) {
  std::vector<CacheLevel> caches;
  for (hwloc_obj_type_t type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE}) {
    const hwloc_obj_t first = hwloc_get_obj_by_type(topology, type, 0);
    if (first == nullptr) continue;
    caches.push_back({.level = static_cast<int>(first->attr->cache.depth),
                      .bytes = first->attr->cache.size,
                      .count = count(topology, type)});
  }
  return caches;
}

/// A line of /proc/meminfo; 0 where there is none.
std::uint64_t read_meminfo(const std::string& key) {
  std::istringstream words(read_file("/proc/meminfo", kAnySize).value_or(""));
  for (std::string word; words >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == key && words >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

/// MemAvailable: free memory and what the system would give up for it.
std::uint64_t read_available_memory() {
  if (const std::uint64_t available = read_meminfo("MemAvailable:"); available > 0) return available;
  const long pages = sysconf(_SC_AVPHYS_PAGES);
  return pages > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

int affinity_threads(int fallback) {
  const auto cpus = static_cast<int>(usable_cpus().count());
  return cpus > 0 ? cpus : fallback;
}

/// The first digits of the identifier that the kernel drew when it started; containers of one machine share it.
std::uint64_t read_machine() {
  const std::string id = read_file("/proc/sys/kernel/random/boot_id", kAnySize).value_or("");
  std::uint64_t machine = 0;
  std::from_chars(id.data(), id.data() + std::min<std::size_t>(id.size(), 8), machine, 16);
  return machine;
}

CgroupLimits read_own_limits() {
  return read_cgroup_limits(read_file("/proc/self/cgroup", kAnySize).value_or(""), "/sys/fs/cgroup");
}

}  // namespace

int threads_within(int affinity_cpus, std::optional<double> quota_cpus) {
  double threads = affinity_cpus;
  if (quota_cpus) threads = std::min(threads, std::ceil(*quota_cpus));
  return std::max(static_cast<int>(threads), 1);
}

int usable_threads() {
  return threads_within(affinity_threads(static_cast<int>(std::thread::hardware_concurrency())),
                        read_own_limits().cpus);
}

CpuSet usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CpuSet cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (std::size_t cpu = 0; cpu < std::min<std::size_t>(cpus.size(), CPU_SETSIZE); ++cpu)
    cpus[cpu] = CPU_ISSET(cpu, &set);
  return cpus;
}

bool can_run_at_once(std::span<const CpuSet> masks) {
  std::vector<CpuSet> choices(masks.begin(), masks.end());
  std::ranges::sort(choices, {}, &CpuSet::count);
  CpuSet taken;
  for (const CpuSet& mask : choices) {
    const CpuSet free = mask & ~taken;
    if (free.none()) return false;
    taken[free._Find_first()] = true;
  }
  return true;
}

std::uint64_t l2_bytes() {
  static const std::uint64_t bytes = [] {
    constexpr std::uint64_t kUsual = std::uint64_t{1} << 20;
    const char* wanted = std::getenv("BUTTERFLY_L2");
    if (const std::uint64_t set = wanted == nullptr ? 0 : parse_bytes(wanted); set > 0) return set;
    const long told = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return told > 0 ? static_cast<std::uint64_t>(told) : kUsual;
  }();
  return bytes;
}

CorePlace this_core() {
  static const std::uint64_t machine = read_machine();
  return {.machine = machine, .cpu = sched_getcpu()};
}

Result<Topology> detect_topology() {
  BF_ASSIGN_OR_RETURN(const HwlocTopology loaded, load_hwloc());
  const hwloc_topology_t hwloc = loaded.get();
  const CgroupLimits limits = read_own_limits();

  Topology topology;
  topology.cpu_name = read_cpu_name(hwloc);
  topology.packages = std::max(count(hwloc, HWLOC_OBJ_PACKAGE), 1);
  topology.hardware_threads = std::max(count(hwloc, HWLOC_OBJ_PU), 1);
  const int cores = count(hwloc, HWLOC_OBJ_CORE);
  topology.cores = cores > 0 ? cores : topology.hardware_threads;
  topology.numa_nodes = std::max(count(hwloc, HWLOC_OBJ_NUMANODE), 1);
  topology.caches = read_caches(hwloc);

  topology.usable_threads = threads_within(affinity_threads(topology.hardware_threads), limits.cpus);

  // Virtual machines whose memory can grow tell hwloc what they began with; without /sys it knows nothing.
  topology.memory_bytes = std::max<std::uint64_t>(hwloc_get_root_obj(hwloc)->total_memory, read_meminfo("MemTotal:"));
  if (topology.memory_bytes == 0) return make_error(ErrorCode::kIo, "the system does not tell how much memory it has");
  topology.available_memory_bytes = std::min(read_available_memory(), topology.memory_bytes);
  topology.memory_is_limited = limits.memory_bytes.value_or(topology.memory_bytes) < topology.memory_bytes;
  topology.memory_bytes = std::min(topology.memory_bytes, limits.memory_bytes.value_or(topology.memory_bytes));
  topology.available_memory_bytes = std::min(topology.available_memory_bytes,
                                             limits.available_memory_bytes.value_or(topology.available_memory_bytes));
  return topology;
}

std::string describe(const Topology& topology) {
  std::vector<std::string> caches;
  for (const CacheLevel& cache : topology.caches) {
    caches.push_back(fmt::format("L{} {} x {}", cache.level, cache.count, format_bytes(cache.bytes)));
  }
  return fmt::format(
      "{}\n{} packages, {} cores, {} hardware threads ({} usable here), {} NUMA nodes\ncaches: {}\nmemory: {}, {} "
      "available\n",
      topology.cpu_name, topology.packages, topology.cores, topology.hardware_threads, topology.usable_threads,
      topology.numa_nodes, caches.empty() ? "unknown" : fmt::format("{}", fmt::join(caches, ", ")),
      format_bytes(topology.memory_bytes), format_bytes(topology.available_memory_bytes));
}

}  // namespace butterfly
