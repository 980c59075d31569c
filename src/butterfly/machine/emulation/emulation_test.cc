#include "butterfly/machine/emulation/emulation.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

class EmulationTest : public ::testing::Test {
 protected:
  /// The thread computes for `processor` ns; `stolen` is time in which others had its core.
  void work(std::uint64_t processor, std::uint64_t stolen = 0) {
    processor_ns += processor;
    wall_ns += processor + stolen;
  }
  Emulation at(double speed) {
    return Emulation(speed, {.wall_ns = [this] { return wall_ns; },
                             .processor_ns = [this] { return processor_ns; },
                             .sleep_until = [this](std::uint64_t until) { wall_ns = until + oversleep; }});
  }
  std::uint64_t wall_ns = 1000;
  std::uint64_t processor_ns = 500;
  std::uint64_t oversleep = 0;
};

TEST_F(EmulationTest, WorkTakesAsManyTimesLongerAsTheMachineIsSlower) {
  Emulation emulation = at(0.25);
  emulation.begin();
  work(100);
  emulation.catch_up();
  EXPECT_EQ(wall_ns, 1000u + 400u);
}

TEST_F(EmulationTest, WhatTheSlowerMachineWorkedIsCountedWithoutWaits) {
  oversleep = 60;
  Emulation emulation = at(0.25);
  for (int i = 0; i < 3; ++i) {
    emulation.begin();
    work(100, 30);
    emulation.catch_up();
    wall_ns += 1000;
  }
  EXPECT_EQ(emulation.worked_ns(), 3u * 400u);
}

TEST_F(EmulationTest, ACoreThatOthersUsedMeanwhileDoesNotShow) {
  Emulation emulation = at(0.25);
  emulation.begin();
  work(100, 250);
  emulation.catch_up();
  EXPECT_EQ(wall_ns, 1000u + 400u);
}

TEST_F(EmulationTest, SleepingTooLongIsMadeUpFor) {
  oversleep = 60;
  Emulation emulation = at(0.5);
  emulation.begin();
  for (int i = 0; i < 10; ++i) {
    work(100);
    emulation.catch_up();
  }
  EXPECT_EQ(wall_ns, 1000u + 10 * 200u + 60u);
}

// Fails where members of a group that wake late drag each other along: each would pay for the latest at every exchange.
TEST_F(EmulationTest, SleepingTooLongIsMadeUpForAfterAWaitToo) {
  oversleep = 60;
  Emulation emulation = at(0.5);
  for (int i = 0; i < 10; ++i) {
    emulation.begin();
    work(100);
    emulation.catch_up();
    wall_ns += 1000;
  }
  EXPECT_EQ(wall_ns, 1000u + 10 * 1200u + 60u);
}

TEST_F(EmulationTest, WaitingBetweenTwoPiecesOfWorkIsNotWork) {
  Emulation emulation = at(0.5);
  emulation.begin();
  work(100);
  emulation.catch_up();
  wall_ns += 10'000;
  emulation.begin();
  work(100);
  emulation.catch_up();
  EXPECT_EQ(wall_ns, 1000u + 200u + 10'000u + 200u);
}

TEST_F(EmulationTest, FullSpeedSleepsNever) {
  Emulation emulation = at(1.0);
  emulation.begin();
  work(100);
  emulation.catch_up();
  EXPECT_EQ(wall_ns, 1100u);
}

}  // namespace
}  // namespace butterfly
