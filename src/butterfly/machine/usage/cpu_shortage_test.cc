#include "butterfly/machine/usage/cpu_shortage.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace butterfly {
namespace {

TEST(CpuShortage, ReadsThePressureOfTheMachine) {
  EXPECT_EQ(parse_pressure_us("some avg10=92.93 avg60=92.23 avg300=80.88 total=32499506003"), 32499506003u);
  EXPECT_EQ(parse_pressure_us("full avg10=0.00 total=5"), 0u);
  EXPECT_EQ(parse_pressure_us("some total="), 0u);
  EXPECT_EQ(parse_pressure_us(""), 0u);
}

TEST(CpuShortage, ThreadsThatShareCpusWait) {
  if (run_queue_ns() == 0) GTEST_SKIP() << "this system does not tell how long threads wait for a CPU";
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3 * static_cast<int>(std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested()) continue;
    });
  }
  const CpuShortage shortage;
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_GT(shortage.share(), 0.4) << "three want each CPU";
  EXPECT_GT(shortage.share_of_machine(), 0.4);
  EXPECT_LE(shortage.share(), 1.0);
}

}  // namespace
}  // namespace butterfly
