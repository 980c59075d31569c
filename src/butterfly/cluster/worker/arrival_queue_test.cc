#include "butterfly/cluster/worker/arrival_queue.h"

#include <gtest/gtest.h>

#include <thread>

#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

Arrival labelled(std::string label, ChannelPtr channel) {
  Arrival arrival;
  arrival.channel = std::move(channel);
  arrival.introduction.label = std::move(label);
  return arrival;
}

TEST(ArrivalQueue, GivesArrivalsInTheirOrder) {
  ArrivalQueue queue;
  queue.deliver(labelled("a", nullptr));
  queue.deliver(labelled("b", nullptr));
  EXPECT_EQ(queue.accept(after_ms(1000)).value().introduction.label, "a");
  EXPECT_EQ(queue.accept(after_ms(1000)).value().introduction.label, "b");
  EXPECT_EQ(queue.accept(after_ms(1)).error().code, ErrorCode::kTimeout);
}

TEST(ArrivalQueue, AWaitEndsWhenSomethingArrives) {
  ArrivalQueue queue;
  std::jthread other([&] { queue.deliver(labelled("late", nullptr)); });
  EXPECT_EQ(queue.accept(after_ms(20'000)).value().introduction.label, "late");
}

TEST(ArrivalQueue, AnInterruptEndsOneWaitAndCloseAll) {
  ArrivalQueue queue;
  queue.interrupt();
  EXPECT_EQ(queue.accept(after_ms(20'000)).error().code, ErrorCode::kCancelled);
  queue.deliver(labelled("a", nullptr));
  EXPECT_TRUE(queue.accept(after_ms(1000)));
  std::jthread other([&] { queue.close(); });
  EXPECT_EQ(queue.accept(after_ms(20'000)).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(queue.accept(after_ms(20'000)).error().code, ErrorCode::kCancelled);
}

TEST(ArrivalQueue, WhatComesAfterItsEndOrIsTooMuchIsClosed) {
  ArrivalQueue queue;
  for (std::size_t i = 0; i < ArrivalQueue::kWaitingMax; ++i) queue.deliver(labelled("a", nullptr));
  auto [too_many, peer_of_it] = make_inproc_pair();
  queue.deliver(labelled("b", std::move(too_many)));
  EXPECT_TRUE(peer_of_it->broken());
  queue.close();
  auto [late, peer_of_late] = make_inproc_pair();
  queue.deliver(labelled("c", std::move(late)));
  EXPECT_TRUE(peer_of_late->broken());
}

}  // namespace
}  // namespace butterfly
