#include "butterfly/machine/topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace butterfly {
namespace {

namespace fs = std::filesystem;

/// A directory of files that look like control groups.
class CgroupTree : public testing::Test {
 protected:
  CgroupTree() : root_(fs::path(testing::TempDir()) / ("cgroup-" + std::to_string(getpid()))) {
    fs::create_directories(root_);
  }
  ~CgroupTree() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(CgroupTree, UnifiedLimitIsTheSmallestFromTheGroupUpToTheRoot) {
  write("a/b/memory.max", "8000\n");
  write("a/b/memory.current", "1000\n");
  write("a/memory.max", "6000\n");
  write("a/memory.current", "5500\n");
  write("a/memory.stat", "anon 7\ninactive_file 500\nactive_file 3\n");
  write("memory.max", "max\n");
  const CgroupLimits limits = read_cgroup_limits("0::/a/b\n", root_);
  EXPECT_EQ(limits.memory_bytes, 6000u);
  EXPECT_EQ(limits.available_memory_bytes, 1000u);
  EXPECT_FALSE(limits.cpus.has_value());
}

TEST_F(CgroupTree, VersionOneReadsTheControllersOwnTrees) {
  write("memory/job/memory.limit_in_bytes", "4096\n");
  write("memory/job/memory.usage_in_bytes", "5000\n");  // over the limit for a moment: nothing is left, not 2^64
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cpu/job/cpu.cfs_quota_us", "150000\n");
  write("cpu/job/cpu.cfs_period_us", "100000\n");
  const CgroupLimits limits = read_cgroup_limits("9:name=systemd:/\n5:memory:/job\n4:cpu,cpuacct:/job\n", root_);
  EXPECT_EQ(limits.memory_bytes, 4096u);
  EXPECT_EQ(limits.available_memory_bytes, 0u);
  EXPECT_EQ(limits.cpus, 1.5);
}

TEST_F(CgroupTree, PathOfAnotherNamespaceFallsBackToTheMount) {
  write("memory.max", "7000\n");
  write("cpu.max", "200000 100000\n");
  const CgroupLimits limits = read_cgroup_limits("0::/../outside\n", root_);
  EXPECT_EQ(limits.memory_bytes, 7000u);
  EXPECT_EQ(limits.cpus, 2.0);
}

TEST_F(CgroupTree, NoLimitsAndNonsenseMeanNoLimit) {
  write("memory.max", "max\n");
  write("cpu.max", "max 100000\n");
  for (const char* membership : {"0::/\n", "", "nonsense\n:::\n", "0::\n"}) {
    const CgroupLimits limits = read_cgroup_limits(membership, root_);
    EXPECT_FALSE(limits.memory_bytes.has_value());
    EXPECT_FALSE(limits.cpus.has_value());
  }
  write("memory.max", "lots\n");
  write("cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(read_cgroup_limits("0::/\n", root_).memory_bytes.has_value());
}

TEST(UsableThreads, AreTheLesserOfAffinityAndQuotaAndAtLeastOne) {
  EXPECT_EQ(threads_within(8, std::nullopt), 8);
  EXPECT_EQ(threads_within(8, 1.0), 1);
  EXPECT_EQ(threads_within(8, 1.5), 2);
  EXPECT_EQ(threads_within(8, 0.1), 1);
  EXPECT_EQ(threads_within(2, 16.0), 2);
  EXPECT_EQ(threads_within(0, std::nullopt), 1);
  EXPECT_EQ(threads_within(4, 1e18), 4);
}

TEST_F(CgroupTree, OneCpuOfQuotaGivesOneThread) {
  write("job/cpu.max", "100000 100000\n");
  EXPECT_EQ(threads_within(64, read_cgroup_limits("0::/job\n", root_).cpus), 1);
  write("cpu,cpuacct/job/cpu.cfs_quota_us", "100000\n");
  write("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  fs::create_directory_symlink("cpu,cpuacct", root_ / "cpu");
  EXPECT_EQ(threads_within(64, read_cgroup_limits("4:cpu,cpuacct:/job\n", root_).cpus), 1);
}

TEST(UsableThreads, OfThisProcessFollowItsAffinity) {
  std::thread([] {
    cpu_set_t mine;
    ASSERT_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &mine)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_threads(), 1);
    EXPECT_EQ(usable_cpus().count(), 1u);
    EXPECT_TRUE(CPU_ISSET(usable_cpus()._Find_first(), &one));
  }).join();
  EXPECT_EQ(usable_threads(), detect_topology()->usable_threads);
}

TEST(CpuSet, MasksCanRunAtOnceWhereEachFindsACpuOfItsOwn) {
  using Masks = std::vector<CpuSet>;
  EXPECT_TRUE(can_run_at_once({}));
  EXPECT_TRUE(can_run_at_once(Masks{0b01, 0b10})) << "each tied to a CPU of its own";
  EXPECT_FALSE(can_run_at_once(Masks{0b01, 0b01})) << "both tied to the same";
  EXPECT_TRUE(can_run_at_once(Masks{0b11, 0b11}));
  EXPECT_FALSE(can_run_at_once(Masks{0b11, 0b11, 0b11}));
  EXPECT_TRUE(can_run_at_once(Masks{0b111, 0b010, 0b011})) << "who has less choice chooses first";
  EXPECT_FALSE(can_run_at_once(Masks{0b1100, 0b0001, 0b0001})) << "enough CPUs, but not for these two";
  EXPECT_FALSE(can_run_at_once(Masks{0b1, CpuSet()})) << "unknown";
}

TEST(Topology, CountsOfThisMachineFitTogether) {
  const Result<Topology> topology = detect_topology();
  ASSERT_TRUE(topology.has_value());
  EXPECT_FALSE(topology->cpu_name.empty());
  EXPECT_GE(topology->packages, 1);
  EXPECT_GE(topology->cores, topology->packages);
  EXPECT_GE(topology->hardware_threads, topology->cores);
  EXPECT_GE(topology->usable_threads, 1);
  EXPECT_LE(topology->usable_threads, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  EXPECT_GE(topology->numa_nodes, 1);
  for (std::size_t i = 1; i < topology->caches.size(); ++i) {
    EXPECT_LT(topology->caches[i - 1].level, topology->caches[i].level);
  }
  EXPECT_GT(topology->available_memory_bytes, 0u);
  EXPECT_LE(topology->available_memory_bytes, topology->memory_bytes);
  const auto installed =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  EXPECT_LE(topology->memory_bytes, installed + (installed >> 3));
  EXPECT_NE(describe(*topology).find(topology->cpu_name), std::string::npos);
}

TEST(Topology, ThreadsOfOneMachineAreOnItsCores) {
  const CorePlace mine = this_core();
  CorePlace other;
  std::thread([&] { other = this_core(); }).join();
  EXPECT_TRUE(mine.known());
  EXPECT_LT(mine.cpu, static_cast<int>(sysconf(_SC_NPROCESSORS_CONF)));
  EXPECT_EQ(mine.machine, other.machine);
}

TEST(Topology, AThreadThatIsTiedToACoreIsFoundThere) {
  cpu_set_t usable;
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable)) continue;
    CorePlace place;
    std::thread([&] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      place = this_core();
    }).join();
    EXPECT_EQ(place.cpu, cpu);
  }
}

}  // namespace
}  // namespace butterfly
