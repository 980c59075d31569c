#include "butterfly/machine/usage/process_usage.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace butterfly {
namespace {

TEST(UsageHistory, AWindowLooksAtItsOwnTimeOnly) {
  UsageHistory history;
  EXPECT_TRUE(history.windows({}).empty());
  // Busy with one CPU until second 100, then idle.
  for (int quarter = 0; quarter <= 408; ++quarter) {
    const double at = 0.25 * quarter;
    history.add({.at_s = at, .cpu_s = std::min(at, 100.0), .memory_bytes = quarter == 380 ? 900u : 500u});
  }
  const auto windows = history.windows({.at_s = 102.0, .cpu_s = 100.0, .memory_bytes = 400});
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_DOUBLE_EQ(windows[0].seconds, 1.0);
  EXPECT_EQ(windows[0].cpu, 0.0) << "idle for two seconds";
  EXPECT_EQ(windows[0].memory_bytes, 500u);
  EXPECT_DOUBLE_EQ(windows[1].cpu, 0.8);
  EXPECT_EQ(windows[1].memory_bytes, 900u);
  EXPECT_DOUBLE_EQ(windows[2].seconds, 60.0);
  EXPECT_NEAR(windows[2].cpu, 58.0 / 60, 1e-9);
}

TEST(UsageHistory, RatesAreOfWhatCameAndWent) {
  UsageHistory history;
  history.add({.at_s = 5.0, .busy_s = 1.0, .received_bytes = 100, .sent_bytes = 0});
  const auto windows = history.windows({.at_s = 7.0, .busy_s = 2.0, .received_bytes = 300, .sent_bytes = 10});
  for (const UsageWindow& window : windows) {  // the process is younger than each of them
    EXPECT_DOUBLE_EQ(window.seconds, 2.0);
    EXPECT_DOUBLE_EQ(window.busy, 0.5);
    EXPECT_DOUBLE_EQ(window.received_bytes_per_s, 100.0);
    EXPECT_DOUBLE_EQ(window.sent_bytes_per_s, 5.0);
  }
}

TEST(ResidentBytes, AreOfThisProcess) {
  const std::uint64_t before = resident_bytes();
  EXPECT_GT(before, std::uint64_t{1} << 20);
  const std::vector<char> touched(std::size_t{64} << 20, 'x');
  EXPECT_GT(resident_bytes(), before + (std::uint64_t{32} << 20)) << touched.size();
}

TEST(UsageMeter, CountsTheTimeOfThisProcess) {
  const UsageMeter meter;
  while (meter.windows().empty()) std::this_thread::yield();
  const double before = measure_usage().cpu_s;
  std::uint64_t work = 1;
  while (measure_usage().cpu_s < before + 0.02) work = work * 6364136223846793005u + 1;
  const auto windows = meter.windows();
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_GT(windows[0].cpu, 0.0) << work;
  EXPECT_GT(windows[0].memory_bytes, 0u);
}

}  // namespace
}  // namespace butterfly
