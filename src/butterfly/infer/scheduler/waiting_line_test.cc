#include "butterfly/infer/scheduler/waiting_line.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

using namespace std::chrono_literals;

class WaitingLineTest : public testing::Test {
 protected:
  std::uint64_t take(WaitingLine::Clock::time_point now) {
    const Waiter* next = line_.next(now);
    if (next == nullptr) return 0;
    const std::uint64_t id = next->id;
    line_.remove(id);
    return id;
  }

  WaitingLine line_;
  WaitingLine::Clock::time_point begin_ = WaitingLine::Clock::now();
};

TEST_F(WaitingLineTest, TheMostUrgentGoesFirstThenTheOldest) {
  line_.add({.id = 1, .priority = 0, .since = begin_});
  line_.add({.id = 2, .priority = 5, .since = begin_});
  line_.add({.id = 3, .priority = 5, .since = begin_});
  EXPECT_EQ(take(begin_), 2u);
  EXPECT_EQ(take(begin_), 3u);
  EXPECT_EQ(take(begin_), 1u);
  EXPECT_EQ(take(begin_), 0u);
}

TEST_F(WaitingLineTest, ALowPriorityIsServedWithinItsBound) {
  line_.add({.id = 1, .priority = -2, .since = begin_});
  std::uint64_t next_id = 2;
  auto now = begin_;
  // A more urgent one comes each second, and is served at once: until the first has waited long enough.
  for (; now < begin_ + 60s; now += 1s) {
    line_.add({.id = next_id++, .priority = 1, .since = now});
    if (take(now) == 1) break;
  }
  EXPECT_LE(now, begin_ + 3 * WaitingLine::kAgeing + 1s);
}

TEST_F(WaitingLineTest, UsersTakeTurnsByWhatTheyGot) {
  for (std::uint64_t id = 1; id <= 4; ++id) line_.add({.id = id, .user = "many", .since = begin_});
  line_.add({.id = 5, .user = "few", .since = begin_});
  line_.charge("few", 0);
  line_.charge("many", 10);
  EXPECT_EQ(take(begin_), 5u);
  line_.charge("few", 11);
  line_.add({.id = 6, .user = "few", .since = begin_});
  EXPECT_EQ(take(begin_), 1u);
}

TEST_F(WaitingLineTest, WhoIsNewBeginsAsOneWhoGotAsLittleAsAnybody) {
  line_.add({.id = 1, .user = "old", .since = begin_});
  line_.charge("old", 1000);
  line_.add({.id = 2, .user = "new", .since = begin_});
  EXPECT_EQ(take(begin_), 1u) << "else a new name would pass all others";
  line_.charge("new", 0);
  line_.charge("old", 1);
  line_.add({.id = 3, .user = "old", .since = begin_});
  EXPECT_EQ(take(begin_), 2u);
}

TEST_F(WaitingLineTest, WhoIsGoneIsForgotten) {
  line_.charge("gone", 1000);
  line_.charge("here", 5);
  line_.settle({"here"});
  line_.charge("gone", 0);
  line_.add({.id = 1, .user = "here", .since = begin_});
  line_.add({.id = 2, .user = "gone", .since = begin_});
  EXPECT_EQ(take(begin_), 1u) << "alike, so the first";
}

}  // namespace
}  // namespace butterfly
