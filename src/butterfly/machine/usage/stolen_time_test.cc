#include "butterfly/machine/usage/stolen_time.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

TEST(StolenTime, TheFirstLineOfProcStatIsRead) {
  const auto ticks = parse_cpu_ticks("cpu  100 20 30 4000 500 6 7 89 10 11\ncpu0 1 2 3 4 5 6 7 8\n");
  ASSERT_TRUE(ticks.has_value());
  EXPECT_EQ(ticks->busy, 100u + 20u + 30u + 6u + 7u);
  EXPECT_EQ(ticks->stolen, 89u);
}

TEST(StolenTime, OtherTextsAreRefused) {
  for (const char* text : {"", "cpu", "cpu0 1 2 3 4 5 6 7 8 9", "cpu  1 2 3 4", "cpu  1 2 x 4 5 6 7 8", "intr 1 2"}) {
    EXPECT_FALSE(parse_cpu_ticks(text).has_value()) << text;
  }
}

TEST(StolenTime, TheShareIsOfWhatWasWantedNotOfAllCpus) {
  EXPECT_DOUBLE_EQ(stolen_share({.busy = 1000, .stolen = 50}, {.busy = 1090, .stolen = 60}), 0.1);
  EXPECT_EQ(stolen_share({.busy = 1000, .stolen = 50}, {.busy = 1090, .stolen = 50}), 0.0);
  EXPECT_EQ(stolen_share({.busy = 1000, .stolen = 50}, {.busy = 1000, .stolen = 50}), 0.0);
  EXPECT_EQ(stolen_share({.busy = 1000, .stolen = 50}, {.busy = 900, .stolen = 40}), 0.0) << "counters that went back";
}

TEST(StolenTime, OfThisMachineIsAShare) {
  const StolenTime stolen;
  EXPECT_GE(stolen.share(), 0.0);
  EXPECT_LE(stolen.share(), 1.0);
}

}  // namespace
}  // namespace butterfly
