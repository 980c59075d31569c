#include "butterfly/machine/peaks.h"
#include "butterfly/machine/measurement_cache.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "butterfly/machine/node.h"
#include "butterfly/machine/peak_loops.h"

namespace butterfly {
namespace {

namespace fs = std::filesystem;

constexpr PeakOptions kSmall{.isa = Isa::kReference, .threads = 1, .buffer_bytes = 1 << 20};

/// Environment for one test: an empty cache of its own.
class PeaksCache : public testing::Test {
 protected:
  PeaksCache() : home_(fs::path(testing::TempDir()) / ("cache-" + std::to_string(getpid()))) {
    fs::create_directories(home_);
    set("XDG_CACHE_HOME", home_.c_str());
    set("BUTTERFLY_CACHE", "");
  }
  ~PeaksCache() override {
    for (const auto& [name, value] : before_) value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
    fs::remove_all(home_);
  }
  void set(const std::string& name, const std::string& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace_back(name, old != nullptr ? std::optional<std::string>(old) : std::nullopt);
    setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    if (!fs::exists(home_ / "butterfly")) return found;
    for (const auto& entry : fs::directory_iterator(home_ / "butterfly")) found.push_back(entry.path());
    return found;
  }

  fs::path home_;
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

Peaks example() {
  return {.isa = Isa::kAvx2,
          .threads = 3,
          .one_thread = {.memory_read_gb_per_s = 10.5, .fp32_gflops = 100.25, .int8_gops = 0.0},
          .team = {.memory_read_gb_per_s = 20.5, .fp32_gflops = 300.75, .int8_gops = 1000.0}};
}

TEST(Peaks, EveryInstructionSetOfThisMachineGivesPositiveRates) {
  for (Isa isa : supported_isas()) {
    const Result<Peaks> peaks = measure_peaks({.isa = isa, .threads = 2, .buffer_bytes = 1 << 20});
    ASSERT_TRUE(peaks.has_value());
    EXPECT_EQ(peaks->isa, isa);
    EXPECT_EQ(peaks->threads, 2);
    for (const Rates& rates : {peaks->one_thread, peaks->team}) {
      EXPECT_GT(rates.memory_read_gb_per_s, 0.0);
      EXPECT_GT(rates.fp32_gflops, 0.0);
      EXPECT_EQ(rates.int8_gops > 0.0, isa != Isa::kReference);
    }
  }
}

/// What a measurement on one CPU says: alone, of four times as many threads there, and beside four others.
struct OnOneCpu {
  double alone = 0.0, in_turns = 0.0, crowded = 0.0;
};
OnOneCpu measure_on_this_cpu() {
  PeakOptions options = kSmall;
  options.other_work = OtherWork::kDiscounted;
  PeakOptions too_many = options;
  too_many.threads = 4 * options.threads;
  const auto rate = [](const PeakOptions& of) {
    const Result<Peaks> peaks = measure_peaks(of);
    EXPECT_TRUE(peaks.has_value());
    return peaks ? peaks->team.fp32_gflops : 0.0;
  };
  OnOneCpu found{.alone = rate(options), .in_turns = rate(too_many)};
  std::atomic<bool> stop{false};
  std::vector<std::jthread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  found.crowded = rate(options);
  stop = true;
  return found;
}

// A machine that others use may spoil a measurement: one of several has to be right. Fails when threads that take turns
// are counted as if each had a CPU, which gives four times the rate, or by the clock, which gives a fifth to a half.
TEST(Peaks, OtherWorkOnTheSameCpuIsDiscounted) {
  cpu_set_t before, first;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&first);
  CPU_SET(cpu, &first);
  ASSERT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
  OnOneCpu found;
  const auto is_right = [&] { return found.in_turns < 1.7 * found.alone && found.crowded > 0.6 * found.alone; };
  for (int tries = 0; tries < 8 && !is_right(); ++tries) found = measure_on_this_cpu();
  sched_setaffinity(0, sizeof before, &before);
  EXPECT_TRUE(is_right()) << found.alone << " alone, " << found.in_turns << " in turns, " << found.crowded
                          << " beside others";
}

TEST(Peaks, ReadLoopsTouchEveryByte) {
  std::vector<const PeakLoops*> all{&peak_loops_reference()};
#if defined(__x86_64__)
  for (Isa isa : supported_isas()) {
    if (isa == Isa::kAvx2) all.push_back(&peak_loops_avx2());
    if (isa == Isa::kAvx512) all.push_back(&peak_loops_avx512());
    if (isa == Isa::kAmx) all.push_back(&peak_loops_amx());
  }
#endif
  constexpr std::size_t kBytes = 2048;
  alignas(64) static unsigned char data[kBytes];
  for (const PeakLoops* loops : all) {
    const unsigned long long nothing = loops->read(data, kBytes);
    for (std::size_t i = 0; i < kBytes; i += 8) {
      data[i] = 1;
      ASSERT_NE(loops->read(data, kBytes), nothing) << "byte " << i;
      data[i] = 0;
    }
  }
}

TEST(TeamLatency, ATeamOfOneCostsNothingAndALargerOneSomething) {
  EXPECT_EQ(measure_team(1).dispatch_us, 0.0);
  EXPECT_EQ(measure_team(1).wake_us, 0.0);
  EXPECT_GT(measure_team(2).dispatch_us, 0.0);
  EXPECT_GE(measure_team(2).wake_us, 0.0);
}

TEST(Peaks, ImpossibleRequestsAreErrors) {
  const Result<Peaks> no_threads = measure_peaks({.isa = Isa::kReference, .threads = 0});
  ASSERT_FALSE(no_threads.has_value());
  EXPECT_EQ(no_threads.error().code, ErrorCode::kInvalidArgument);
  const Result<Peaks> too_much =
      measure_peaks({.isa = Isa::kReference, .threads = 1, .buffer_bytes = std::uint64_t{1} << 60});
  ASSERT_FALSE(too_much.has_value());
  EXPECT_EQ(too_much.error().code, ErrorCode::kNoMemory);
}

TEST(Peaks, EachCacheLargeEnoughHasARateAndItsTextComesBack) {
  const std::vector<CacheLevel> caches{{.level = 1, .bytes = 32 << 10, .count = 1},
                                       {.level = 2, .bytes = 40 << 10, .count = 1},
                                       {.level = 3, .bytes = 1 << 20, .count = 1}};
  const auto rates = measure_cache_rates(supported_isas().back(), 1, caches);
  ASSERT_TRUE(rates.has_value());
  ASSERT_EQ(rates->size(), 2u) << "half of the second would lie in the first";
  EXPECT_EQ((*rates)[1].level, 3);
  EXPECT_GT((*rates)[0].gb_per_s, 0.0);
  const std::string text = serialize(*rates);
  const auto parsed = parse_cache_rates(text);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(serialize(*parsed), text);
  for (const char* bad : {"", "butterfly-cache-rates 2\n", "butterfly-cache-rates 1\n1 32768 nan\n",
                          "butterfly-cache-rates 1\n0 32768 5\n", "butterfly-cache-rates 1\n1 32768\n"}) {
    EXPECT_FALSE(parse_cache_rates(bad).has_value()) << bad;
  }
  EXPECT_FALSE(measure_cache_rates(Isa::kReference, 0, caches).has_value());
}

TEST(Peaks, TextComesBackAsTheSameNumbers) {
  const Peaks peaks = example();
  const auto parsed = parse_peaks(serialize(peaks));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(serialize(*parsed), serialize(peaks));
  EXPECT_EQ(parsed->isa, Isa::kAvx2);
  EXPECT_EQ(parsed->team.fp32_gflops, 300.75);
  EXPECT_EQ(parsed->one_thread.memory_read_gb_per_s, 10.5);
}

TEST(Peaks, EveryTruncationAndNonsenseIsNoCache) {
  const std::string text = serialize(example());
  // The last digits of the last number may go missing unnoticed; nothing before them may.
  for (std::size_t length = 0; length < text.rfind(' '); ++length) {
    EXPECT_FALSE(parse_peaks(text.substr(0, length)).has_value()) << length;
  }
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"butterfly-peaks 1", "butterfly-peaks 2"},
                                                        {"avx2", "sse9"},
                                                        {"10.5", "-1"},
                                                        {"10.5", "nan"},
                                                        {"10.5", "inf"},
                                                        {"threads 3", "threads 0"},
                                                        {"fp32", "fp64"}}) {
    std::string broken = text;
    broken.replace(broken.find(from), from.size(), to);
    EXPECT_FALSE(parse_peaks(broken).has_value()) << to;
  }
}

TEST_F(PeaksCache, SecondCallReadsWhatTheFirstWrote) {
  ASSERT_TRUE(cached_peaks(kSmall, "some CPU").has_value());
  ASSERT_EQ(files().size(), 1u);
  Peaks changed = example();
  changed.isa = kSmall.isa;
  changed.threads = kSmall.threads;
  std::ofstream(files()[0]) << serialize(changed);
  const Result<Peaks> again = cached_peaks(kSmall, "some CPU");
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->team.fp32_gflops, 300.75);
  ASSERT_TRUE(cached_peaks(kSmall, "another CPU").has_value());
  EXPECT_EQ(files().size(), 2u);
}

/// With a mark before it where the machine was busy meanwhile.
std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(PeaksCache, RenewedPeaksKeepTheLargerOfEachNumber) {
  Peaks disturbed{.isa = kSmall.isa, .threads = kSmall.threads, .one_thread = {}, .team = {}};
  disturbed.team.fp32_gflops = 1e-3;
  disturbed.team.memory_read_gb_per_s = 1e6;
  ASSERT_TRUE(cached_peaks(kSmall, "some CPU").has_value());
  ASSERT_EQ(files().size(), 1u);
  std::ofstream(files()[0]) << serialize(disturbed);
  const Result<Peaks> renewed = renewed_peaks(kSmall, "some CPU");
  ASSERT_TRUE(renewed.has_value());
  EXPECT_GT(renewed->team.fp32_gflops, 1e-3);
  EXPECT_EQ(renewed->team.memory_read_gb_per_s, 1e6);
  EXPECT_TRUE(text_of(files()[0]).ends_with(serialize(*renewed))) << text_of(files()[0]);
}

TEST_F(PeaksCache, CorruptFileIsMeasuredAgainAndReplaced) {
  ASSERT_TRUE(cached_peaks(kSmall, "some CPU").has_value());
  ASSERT_EQ(files().size(), 1u);
  std::ofstream(files()[0]) << "butterfly-peaks 1\nisa reference\nthreads one\n";
  const Result<Peaks> again = cached_peaks(kSmall, "some CPU");
  ASSERT_TRUE(again.has_value());
  EXPECT_GT(again->team.fp32_gflops, 0.0);
  EXPECT_TRUE(text_of(files()[0]).ends_with(serialize(*again))) << text_of(files()[0]);
}

TEST_F(PeaksCache, DirectoryThatCannotBeWrittenIsNoError) {
  set("XDG_CACHE_HOME", "/proc/no/such/place");
  EXPECT_TRUE(cached_peaks(kSmall, "some CPU").has_value());
}

TEST_F(PeaksCache, OffMeansNoFile) {
  set("BUTTERFLY_CACHE", "off");
  EXPECT_FALSE(cache_directory().has_value());
  ASSERT_TRUE(cached_peaks(kSmall, "some CPU").has_value());
  EXPECT_TRUE(files().empty());
}

TEST_F(PeaksCache, HomeIsUsedWithoutXdg) {
  set("XDG_CACHE_HOME", "");
  set("HOME", home_.string());
  EXPECT_EQ(cache_directory(), home_ / ".cache" / "butterfly");
}

TEST_F(PeaksCache, NodeOfThisMachineIsWholeAndKeepsWhatWasAsked) {
  const Result<NodeDescriptor> node =
      measure_node({.name = "left", .address = "127.0.0.1:7000", .isa = Isa::kReference, .threads = 1});
  ASSERT_TRUE(node.has_value());
  EXPECT_EQ(node->name, "left");
  EXPECT_EQ(node->address, "127.0.0.1:7000");
  EXPECT_EQ(node->isa, Isa::kReference);
  EXPECT_EQ(node->threads, 1);
  EXPECT_GT(node->memory_bytes, 0u);
  EXPECT_GT(node->memory_read_gb_per_s, 0.0);
  EXPECT_GT(node->fp32_gflops, 0.0);
  EXPECT_FALSE(measure_node({.threads = -1}).has_value());
}

}  // namespace
}  // namespace butterfly
