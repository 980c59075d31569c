#include "butterfly/train/ranks/rank_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/train/ranks/ranks.pb.h"
#include "butterfly/train/run/tiny_run_test.h"
#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What the other end makes of a message.
RankMessage travelled(const RankMessage& message) {
  auto [here, there] = make_inproc_pair();
  RankControl sender(std::move(here)), receiver(std::move(there));
  const Status sent = sender.send(message);
  EXPECT_TRUE(sent) << sent.error().message;
  auto received = receiver.receive(after_ms(1000));
  EXPECT_TRUE(received) << received.error().message;
  return received.value();
}

TEST(RankControl, MembersArrive) {
  const RankMessage epoch = travelled(
      {.kind = RankMessageKind::kEpoch, .epoch = Epoch(3), .members = {{0, "127.0.0.1:1"}, {3, "[::1]:7000"}}});
  EXPECT_EQ(epoch.kind, RankMessageKind::kEpoch);
  EXPECT_EQ(epoch.epoch, Epoch(3));
  ASSERT_EQ(epoch.members.size(), 2U);
  EXPECT_EQ(epoch.members[1].number, 3);
  EXPECT_EQ(epoch.members[1].address, "[::1]:7000");
  const RankMessage hello = travelled({.kind = RankMessageKind::kHello, .members = {{2, "[::1]:7000"}}});
  EXPECT_EQ(hello.kind, RankMessageKind::kHello);
  ASSERT_EQ(hello.members.size(), 1U);
  EXPECT_EQ(hello.members[0].number, 2);
}

TEST(RankControl, CausesArriveWholeInAnyEncoding) {
  for (const RankMessageKind kind : {RankMessageKind::kLost, RankMessageKind::kFailed}) {
    const RankMessage message =
        travelled({.kind = kind, .epoch = Epoch(7), .text = "no \xff memory", .code = ErrorCode::kNoMemory});
    EXPECT_EQ(message.kind, kind);
    EXPECT_EQ(message.epoch, Epoch(7));
    EXPECT_EQ(message.text, "no \xff memory");
    EXPECT_EQ(message.code, ErrorCode::kNoMemory);
  }
}

TEST(RankControl, WhatHasNoPartsArrivesAsWhatItIs) {
  using Kind = RankMessageKind;
  for (const Kind kind : {Kind::kAbandon, Kind::kEnd, Kind::kReady}) {
    const RankMessage message = travelled({.kind = kind, .epoch = Epoch(9)});
    EXPECT_EQ(message.kind, kind);
    EXPECT_EQ(message.epoch, Epoch(9));
  }
  EXPECT_THAT(travelled({.kind = Kind::kWanted, .wanted = {0, 4095, 7}}).wanted, ElementsAre(0, 4095, 7));
  const RankMessage task = travelled({.kind = Kind::kTask, .task = RankTask{.number = 5, .config = tiny_run()}});
  ASSERT_TRUE(task.task);
  EXPECT_EQ(task.task->number, 5);
}

TEST(RankControl, WhatNoRankSaysIsRefused) {
  const std::vector<std::pair<const char*, std::function<void(ranks::RankMessage&)>>> strange{
      {"says nothing which is known", [](auto& m) { m.clear_body(); }},
      {"an epoch of 0 ranks", [](auto& m) { m.mutable_begin(); }},
      {"rank -1 at 'a'",
       [](auto& m) {
         m.mutable_hello()->set_number(-1);
         m.mutable_hello()->set_address("a");
       }},
      {"rank 1025 at 'a'",
       [](auto& m) {
         m.mutable_begin()->add_members()->set_number(1025);
         m.mutable_begin()->mutable_members(0)->set_address("a");
       }},
      {"rank 1 at ''", [](auto& m) { m.mutable_hello()->set_number(1); }},
      {"an epoch of 1026 ranks",
       [](auto& m) {
         for (int i = 0; i < 1026; ++i) m.mutable_begin()->add_members()->set_address("a");
       }},
      {"error code 10", [](auto& m) { m.mutable_lost()->set_code(10); }},
      {"error code 99", [](auto& m) { m.mutable_failed()->set_code(99); }},
      {"4097 token files", [](auto& m) { m.mutable_wanted()->mutable_places()->Resize(4097, 0); }},
      {"number 0, those of workers", [](auto& m) { m.mutable_task(); }},
  };
  for (const auto& [sentence, make] : strange) {
    ranks::RankMessage message;
    make(message);
    const std::string bytes = message.SerializeAsString();
    const auto said = parse_rank_message(as_bytes(bytes));
    ASSERT_FALSE(said) << sentence;
    EXPECT_EQ(said.error().code, ErrorCode::kProtocol) << sentence;
    EXPECT_THAT(said.error().message, HasSubstr(sentence));
  }
  EXPECT_THAT(parse_rank_message(as_bytes("\xff\xff")).error().message, HasSubstr("2 bytes that are no message"));
}

TEST(RankControl, APayloadIsRefused) {
  auto [here, there] = make_inproc_pair();
  RankControl receiver(std::move(there));
  ASSERT_TRUE(here->send({.payload = allocate_payload(8).value()}, after_ms(1000)));
  const auto message = receiver.receive(after_ms(1000));
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace butterfly
