#include "butterfly/train/ranks/rank_control.h"

#include <gtest/gtest.h>

#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

TEST(RankControl, MembersSurviveTheirText) {
  const auto members = parse_members(members_text({{0, "127.0.0.1:1"}, {3, "[::1]:7000"}}));
  ASSERT_TRUE(members) << members.error().message;
  ASSERT_EQ(members->size(), 2U);
  EXPECT_EQ(members->at(1).number, 3);
  EXPECT_EQ(members->at(1).address, "[::1]:7000");
}

TEST(RankControl, TextThatNamesNoMembersIsRefused) {
  for (const char* text : {"", "1", "1 a b\n", "x 127.0.0.1:1\n", "0 a\n2\n", "-1 a\n"}) {
    const auto members = parse_members(text);
    ASSERT_FALSE(members) << text;
    EXPECT_EQ(members.error().code, ErrorCode::kProtocol);
  }
}

TEST(RankControl, NewsArriveWhole) {
  auto [here, there] = make_inproc_pair();
  RankControl sender(std::move(here)), receiver(std::move(there));
  ASSERT_TRUE(sender.send(
      {.kind = RankMessageKind::kFailed, .epoch = Epoch(7), .text = "no memory", .code = ErrorCode::kNoMemory}));
  const auto message = receiver.receive(after_ms(1000));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->kind, RankMessageKind::kFailed);
  EXPECT_EQ(message->epoch, Epoch(7));
  EXPECT_EQ(message->text, "no memory");
  EXPECT_EQ(message->code, ErrorCode::kNoMemory);
}

TEST(RankControl, WhatNoRankSaysIsRefused) {
  for (const Message& strange : {Message{.type = 0}, Message{.type = 10}, Message{.type = 4, .tag = 10},
                                 Message{.type = 1, .payload = allocate_payload(8).value()}}) {
    auto [here, there] = make_inproc_pair();
    RankControl receiver(std::move(there));
    ASSERT_TRUE(here->send(strange, after_ms(1000)));
    const auto message = receiver.receive(after_ms(1000));
    ASSERT_FALSE(message);
    EXPECT_EQ(message.error().code, ErrorCode::kProtocol);
  }
}

}  // namespace
}  // namespace butterfly
