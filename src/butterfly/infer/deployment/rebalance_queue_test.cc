#include "butterfly/infer/deployment/rebalance_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace butterfly {
namespace {

using std::chrono::milliseconds;

TEST(RebalanceDesk, EverybodyWhoWaitsGetsTheOneOutcome) {
  RebalanceDesk desk;
  EXPECT_FALSE(desk.wanted());
  std::string heard[2];
  {
    std::vector<std::jthread> askers;
    std::atomic<int> served{0};
    for (std::string& mine : heard) {
      askers.emplace_back([&] {
        mine = desk.ask(milliseconds(20'000)).value();
        ++served;
      });
    }
    while (served < 2) {
      // The second may come later than the first answer: it gets the next.
      if (desk.wanted()) desk.answer(std::string("two layers move"));
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(heard[0], "two layers move");
  EXPECT_EQ(heard[1], "two layers move");
}

TEST(RebalanceDesk, NobodyWaitsForACoordinatorThatEnds) {
  RebalanceDesk desk;
  std::jthread closer([&] {
    while (!desk.wanted()) std::this_thread::yield();
    desk.close();
  });
  EXPECT_EQ(desk.ask(milliseconds(600'000)).error().message, "the coordinator ends");
  EXPECT_EQ(desk.ask(milliseconds(600'000)).error().message, "the coordinator ends");
}

TEST(RebalanceDesk, NobodyWaitsForEver) {
  RebalanceDesk desk;
  const auto outcome = desk.ask(milliseconds(10));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(desk.wanted());
}

}  // namespace
}  // namespace butterfly
