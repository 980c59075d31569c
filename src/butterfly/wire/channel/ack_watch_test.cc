#include "butterfly/wire/channel/ack_watch.h"

#include <gtest/gtest.h>

namespace butterfly {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{200};

struct Line {
  AckWatch watch{};
  std::chrono::steady_clock::time_point now{};
  /// At the next look.
  milliseconds owed(const Acknowledgements& seen) { return watch.owed(seen, now += kLook); }
};

TEST(AckWatch, NothingIsOwedAtOnceAfterALongRest) {
  Line line;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(line.owed({.bytes = 100, .last_came = i * kLook}), milliseconds(0));
  EXPECT_EQ(line.owed({.awaited = true, .bytes = 100, .last_came = milliseconds(10'000)}), milliseconds(0))
      << "sent just now, its acknowledgement is on the way";
  EXPECT_EQ(line.owed({.awaited = true, .bytes = 100, .last_came = milliseconds(10'200)}), kLook);
}

TEST(AckWatch, WhatIsNeverAcknowledgedIsOwedEverLonger) {
  Line line;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(line.owed({.awaited = true, .bytes = 100, .last_came = milliseconds(60'000)}), i * kLook);
  }
}

TEST(AckWatch, WhereBytesAreAlwaysUnderWayEachProgressBeginsAnew) {
  Line line;
  for (int i = 0; i < 20; ++i) {
    const auto bytes = static_cast<std::uint64_t>(i);
    EXPECT_EQ(line.owed({.awaited = true, .bytes = bytes, .last_came = milliseconds(5'000)}), milliseconds(0));
  }
}

TEST(AckWatch, APeerThatRepeatsItselfOwesNothingBeforeItsLastWord) {
  Line line;
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(line.owed({.awaited = true, .bytes = 100, .last_came = milliseconds(30)}), milliseconds(30));
  }
}

TEST(AckWatch, AnAnswerInBetweenEndsWhatWasOwed) {
  Line line;
  const Acknowledgements waiting{.awaited = true, .bytes = 100, .last_came = milliseconds(60'000)};
  line.owed(waiting);
  EXPECT_EQ(line.owed(waiting), kLook);
  EXPECT_EQ(line.owed({.bytes = 100}), milliseconds(0));
  EXPECT_EQ(line.owed(waiting), milliseconds(0));
}

}  // namespace
}  // namespace butterfly
