#include "butterfly/stage/exchange_calibration.h"

#include <gtest/gtest.h>

#include <thread>

#include "butterfly/wire/inproc_exchange.h"

namespace butterfly {
namespace {

/// Members as threads, each with a clock that its own trial moves.
struct Member {
  std::uint64_t block_ns = 1'000'000, worked_of_it_ns = 800'000, many_ns = 3'000'000;
  bool ready = true;
  std::function<Status(int block)> on_block{};

  std::uint64_t now_ns = 0, worked_ns = 0;
  int blocks = 0, manys = 0;
  Result<ExchangeTimes> result = ExchangeTimes{};

  void measure(Exchange& exchange) {
    const auto block = [this]() -> Status {
      if (on_block) BF_TRY(on_block(blocks));
      // What happens once is no measure: caches are cold in the first, and a machine has other things to do.
      now_ns += blocks == 0 || blocks == 7 ? 50 * block_ns : block_ns;
      worked_ns += worked_of_it_ns;
      ++blocks;
      return {};
    };
    const auto many = [this]() -> Status {
      now_ns += manys++ == 0 ? 20 * many_ns : many_ns;
      return {};
    };
    result = measure_exchanges(exchange, {.ready = ready,
                                          .many_rows = 64,
                                          .one_row = block,
                                          .many = many,
                                          .clock_ns = [this] { return now_ns; },
                                          .worked_ns = [this] { return worked_ns; }});
  }
};

void measure(std::vector<Member>& members, std::vector<std::unique_ptr<Exchange>> exchange) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&members, &exchange, i] {
      members[i].measure(*exchange[i]);
      if (!members[i].result) exchange[i].reset();  // as a worker that ends its epoch
    });
  }
}

std::vector<Member> measured(std::vector<Member> members) {
  measure(members, make_inproc_exchange(static_cast<int>(members.size())));
  return members;
}

TEST(ExchangeCalibration, WhatTakesLongerThanTheSlowestMemberComputesIsTheExchange) {
  for (const Member& member : measured({{.worked_of_it_ns = 600'000}, {.worked_of_it_ns = 800'000}, {}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_EQ(member.result->many_rows, 64);
    EXPECT_DOUBLE_EQ(member.result->one_row_s, 100e-6) << "a block exchanges twice";
    EXPECT_DOUBLE_EQ(member.result->many_rows_s, 3e-3);
  }
}

TEST(ExchangeCalibration, AllMembersHearTheSameTimes) {
  const auto members = measured({{.block_ns = 1'000'000, .many_ns = 1'000'000}, {.block_ns = 1'400'000}});
  ASSERT_TRUE(members[0].result && members[1].result);
  EXPECT_EQ(*members[0].result, *members[1].result);
  EXPECT_DOUBLE_EQ(members[0].result->one_row_s, 200e-6);
  EXPECT_DOUBLE_EQ(members[0].result->many_rows_s, 2e-3);
}

TEST(ExchangeCalibration, TheSlowestMemberSaysHowOftenAllMeasure) {
  const auto fast = measured({{.block_ns = 1000, .worked_of_it_ns = 10, .many_ns = 1000}, {}});
  EXPECT_EQ(fast[0].blocks, 2 + 24);
  EXPECT_EQ(fast[0].manys, 2 + 8);
  const auto slow = measured(
      {{.block_ns = 1000, .worked_of_it_ns = 10, .many_ns = 1000}, {.block_ns = 90'000'000, .many_ns = 900'000'000}});
  for (const Member& member : slow) {
    EXPECT_EQ(member.blocks, 2 + 3);
    EXPECT_EQ(member.manys, 2 + 3);
  }
}

TEST(ExchangeCalibration, ComputingThatOutlastsTheClockIsNoNegativeExchange) {
  const auto members = measured({{.worked_of_it_ns = 1'000'100}, {}});
  ASSERT_TRUE(members[0].result);
  EXPECT_EQ(members[0].result->one_row_s, 0.0);
}

TEST(ExchangeCalibration, WhereOneMemberIsNotReadyNobodyMeasuresAndNothingFails) {
  for (const Member& member : measured({{}, {.ready = false}, {}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_FALSE(member.result->measured());
    EXPECT_EQ(member.blocks, 0);
  }
}

TEST(ExchangeCalibration, AMemberThatDiesInTheMeasurementEndsItForAll) {
  for (const int block : {0, 1, 5}) {
    const auto dies = [block](int at) -> Status {
      if (at < block) return {};
      return make_error(ErrorCode::kUnavailable, "died");
    };
    const auto members = measured({{}, {.on_block = dies}, {}});
    for (const Member& member : members) {
      ASSERT_FALSE(member.result) << block;
      EXPECT_EQ(member.result.error().code, ErrorCode::kUnavailable);
    }
    EXPECT_EQ(members[1].result.error().message, "died");
  }
}

}  // namespace
}  // namespace butterfly
