#include "butterfly/infer/deployment/rebalance_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace butterfly {
namespace {

using std::chrono::milliseconds;

TEST(RebalanceQueue, EverybodyWhoWaitsGetsTheOneOutcome) {
  RebalanceQueue queue;
  EXPECT_FALSE(queue.wanted());
  std::string heard[2];
  {
    std::vector<std::jthread> askers;
    std::atomic<int> served{0};
    for (std::string& mine : heard) {
      askers.emplace_back([&] {
        mine = queue.ask(milliseconds(20'000)).value();
        ++served;
      });
    }
    while (served < 2) {
      // The second may come later than the first answer: it gets the next.
      if (queue.wanted()) queue.answer(std::string("two layers move"));
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(heard[0], "two layers move");
  EXPECT_EQ(heard[1], "two layers move");
}

TEST(RebalanceQueue, NobodyWaitsForACoordinatorThatEnds) {
  RebalanceQueue queue;
  std::jthread closer([&] {
    while (!queue.wanted()) std::this_thread::yield();
    queue.close();
  });
  EXPECT_EQ(queue.ask(milliseconds(600'000)).error().message, "the coordinator ends");
  EXPECT_EQ(queue.ask(milliseconds(600'000)).error().message, "the coordinator ends");
}

TEST(RebalanceQueue, NobodyWaitsForEver) {
  RebalanceQueue queue;
  const auto outcome = queue.ask(milliseconds(10));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(queue.wanted());
}

}  // namespace
}  // namespace butterfly
