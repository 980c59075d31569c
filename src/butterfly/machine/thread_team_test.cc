#include "butterfly/machine/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace butterfly {
namespace {

class ThreadTeamOfSize : public testing::TestWithParam<int> {};

TEST_P(ThreadTeamOfSize, RunsEveryMemberExactlyOncePerRound) {
  ThreadTeam team(GetParam());
  ASSERT_EQ(team.size(), GetParam());
  // Plain ints: a member that runs twice, or run() that returns early, is a race for TSan and a wrong sum here.
  std::vector<int> rounds(static_cast<std::size_t>(GetParam()), 0);
  for (int round = 1; round <= 500; ++round) {
    team.run([&](int member) { ++rounds[static_cast<std::size_t>(member)]; });
    for (int count : rounds) ASSERT_EQ(count, round);
  }
}

TEST_P(ThreadTeamOfSize, WakesMembersThatHaveGoneToSleep) {
  ThreadTeam team(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> ran{0};
    team.run([&](int) { ran.fetch_add(1); });
    ASSERT_EQ(ran.load(), GetParam());
  }
}

TEST_P(ThreadTeamOfSize, WaitsForAMemberThatOutlastsTheSpin) {
  ThreadTeam team(GetParam());
  std::atomic<int> finished{0};
  team.run([&](int member) {
    if (member == GetParam() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    finished.fetch_add(1);
  });
  EXPECT_EQ(finished.load(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamOfSize, testing::Values(1, 2, 3, 17));

TEST(ThreadTeam, CallerIsMemberZeroAndMembersKeepTheirThreads) {
  ThreadTeam team(3);
  std::vector<std::thread::id> first(3), again(3);
  team.run([&](int member) { first[static_cast<std::size_t>(member)] = std::this_thread::get_id(); });
  team.run([&](int member) { again[static_cast<std::size_t>(member)] = std::this_thread::get_id(); });
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(first, again);
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 3u);
}

TEST(ThreadTeam, MembersRunConcurrently) {
  ThreadTeam team(3);
  std::atomic<int> arrived{0};
  // Ends only when all three are inside at once.
  team.run([&](int) {
    arrived.fetch_add(1);
    while (arrived.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 3);
}

TEST(ThreadTeam, TeamsOfDifferentThreadsWorkSideBySide) {
  std::atomic<int> total{0};
  std::vector<std::thread> nodes;
  for (int node = 0; node < 4; ++node) {
    nodes.emplace_back([&] {
      ThreadTeam team(2);
      for (int round = 0; round < 200; ++round) team.run([&](int) { total.fetch_add(1); });
    });
  }
  for (std::thread& node : nodes) node.join();
  EXPECT_EQ(total.load(), 4 * 200 * 2);
}

TEST(ThreadTeam, EndsWithoutEverHavingRun) {
  for (int i = 0; i < 20; ++i) ThreadTeam team(4);
}

TEST(SplitWork, CoversTheRangeWithoutGapAndSizesDifferByAtMostOne) {
  for (long count : {0L, 1L, 5L, 32L, 97L}) {
    for (int members : {1, 2, 3, 7, 40}) {
      long next = 0;
      long smallest = count, largest = 0;
      for (int member = 0; member < members; ++member) {
        const WorkRange range = split_work(count, member, members);
        ASSERT_EQ(range.begin, next);
        next = range.end;
        smallest = std::min(smallest, range.end - range.begin);
        largest = std::max(largest, range.end - range.begin);
      }
      ASSERT_EQ(next, count);
      ASSERT_LE(largest - smallest, 1);
    }
  }
}

}  // namespace
}  // namespace butterfly
