#include "butterfly/cluster/worker/channel_hub.h"

#include <gtest/gtest.h>

#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

constexpr std::int64_t kPatienceMs = 20'000;

TEST(ChannelHub, KeepsWhatArrivesBeforeItIsWanted) {
  ChannelHub hub;
  auto [mine, theirs] = make_inproc_pair();
  hub.deliver("input.0@3", std::move(mine));
  EXPECT_TRUE(hub.wait("input.0", Epoch(3), after_ms(kPatienceMs)));
  EXPECT_FALSE(hub.find("input.0", Epoch(2)));
  EXPECT_FALSE(hub.find("output.0", Epoch(3)));
}

TEST(ChannelHub, WhatBelongsToAnEndedEpochIsClosedNowAndLaterAndCounted) {
  ChannelHub hub;
  auto [early, early_peer] = make_inproc_pair();
  hub.deliver("input.0@1", std::move(early));
  hub.end_through(Epoch(1));
  EXPECT_EQ(early_peer->receive({}, after_ms(kPatienceMs)).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(hub.wait("input.0", Epoch(1), after_ms(kPatienceMs))) << "nobody waits for an ended epoch";

  const std::uint64_t stale = trace::read(trace::Counter::kWireStaleMessages);
  auto [late, late_peer] = make_inproc_pair();
  hub.deliver("input.0@1", std::move(late));
  EXPECT_EQ(late_peer->receive({}, after_ms(kPatienceMs)).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(hub.find("input.0", Epoch(1)));
  EXPECT_EQ(trace::read(trace::Counter::kWireStaleMessages), stale + 1);

  auto [next, next_peer] = make_inproc_pair();
  hub.deliver("input.0@2", std::move(next));
  EXPECT_TRUE(hub.find("input.0", Epoch(2)));
}

TEST(ChannelHub, LabelsThatAreNoneAreTurnedAway) {
  ChannelHub hub;
  for (const char* label :
       {"", "input.0", "input.0@", "input.0@x", "input.0@1x", "secrets@1", "input.0@99999999999", "input@1", "input.@1",
        "input.x@1", "input.-1@1", "input.01@1", "input.65536@1", "weights.0@1"}) {
    auto [mine, theirs] = make_inproc_pair();
    hub.deliver(label, std::move(mine));
    EXPECT_EQ(theirs->receive({}, after_ms(kPatienceMs)).error().code, ErrorCode::kUnavailable) << label;
  }
}

}  // namespace
}  // namespace butterfly
