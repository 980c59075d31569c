#include "butterfly/stage/exchange_calibration.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "butterfly/wire/exchange/inproc_exchange.h"

namespace butterfly {
namespace {

/// Members as threads, each with clocks that its own trial moves.
struct Member {
  std::uint64_t together_ns = 1'000'000, alone_ns = 800'000;
  std::uint64_t many_together_ns = 20'000'000, many_alone_ns = 14'000'000;
  bool ready = true;
  std::uint64_t every_third_ns = 0;  // that a block of one row takes longer
  std::uint64_t crowded_ns = 0;      // that any block takes longer where this member is on core 0
  int home = -1;  // on which core it is from when it computes alone until some blocks later; else on 0
  std::function<Status(int block)> on_block{};
  std::function<void()> when_alone{};

  std::uint64_t now_ns = 0, worked_ns = 0;
  CorePlace core{};
  int since_alone = 1000;
  int together[2] = {}, alone[2] = {};  // blocks of one row, of many
  std::vector<int> sizes{};             // of the blocks in turn, each change
  Result<ExchangeTimes> result = ExchangeTimes{};

  Status block(int rows, Company company) {
    const int size = rows == 1 ? 0 : 1;
    if (sizes.empty() || sizes.back() != rows) sizes.push_back(rows);
    since_alone = company == Company::kAlone ? 0 : since_alone + 1;
    if (home >= 0) core = {.machine = 1, .cpu = since_alone < 10 ? home : 0};
    if (company == Company::kAlone) {
      worked_ns += size == 0 ? alone_ns : many_alone_ns;
      now_ns += 7'000'000;
      if (when_alone) when_alone();
      ++alone[size];
      return {};
    }
    if (on_block) BF_TRY(on_block(together[0] + together[1]));
    // What happens once is no measure: caches are cold in the first, and a machine has other things to do.
    const int at = together[size]++;
    now_ns += (at < 2 || at == 7 ? 50 : 1) * (size == 0 ? together_ns : many_together_ns);
    if (size == 0 && at % 3 == 1) now_ns += every_third_ns;
    if (core.cpu == 0) now_ns += crowded_ns;
    worked_ns += 12345;
    return {};
  }

  void measure(Exchange& exchange) {
    result = measure_exchanges(exchange, {.ready = ready,
                                          .many_rows = 64,
                                          .block = [this](int rows, Company company) { return block(rows, company); },
                                          .clock_ns = [this] { return now_ns; },
                                          .worked_ns = [this] { return worked_ns; },
                                          .core = [this] { return core; }});
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

TEST(ExchangeCalibration, WhatTakesLongerThanTheSlowestMemberAloneIsTheExchange) {
  for (const Member& member :
       measured({{.alone_ns = 600'000, .many_alone_ns = 9'000'000}, {}, {.alone_ns = 700'000}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_EQ(member.result->many_rows, 64);
    EXPECT_DOUBLE_EQ(member.result->one_row_s, 100e-6) << "a block exchanges twice";
    EXPECT_DOUBLE_EQ(member.result->many_rows_s, 3e-3);
  }
}

TEST(ExchangeCalibration, AllMembersHearTheSameTimes) {
  const auto members = measured({{}, {.together_ns = 1'400'000, .many_together_ns = 24'000'000}});
  ASSERT_TRUE(members[0].result && members[1].result);
  EXPECT_EQ(*members[0].result, *members[1].result);
  EXPECT_DOUBLE_EQ(members[0].result->one_row_s, 200e-6);
  EXPECT_DOUBLE_EQ(members[0].result->many_rows_s, 4e-3);
}

TEST(ExchangeCalibration, OneRowIsMeasuredAfterManyAsDecodeFollowsAPrompt) {
  for (const Member& member : measured({{}, {}})) EXPECT_EQ(member.sizes, (std::vector<int>{64, 1, 64, 1}));
}

TEST(ExchangeCalibration, SlowBlocksCountByHowManyTheyAre) {
  // The eight fastest and the eight slowest of 64 are left out: 13 of 48 are slow ones then.
  for (const Member& member : measured({{.every_third_ns = 480'000}, {.every_third_ns = 480'000}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_NEAR(member.result->one_row_block_s, 1130e-6, 1e-9) << "a run takes the sum of them";
    EXPECT_NEAR(member.result->one_row_s, 165e-6, 1e-9);
  }
}

TEST(ExchangeCalibration, BlocksOfMembersOnOneCoreDoNotCountWhereTheyCanPart) {
  for (const Member& member : measured({{.crowded_ns = 900'000, .home = 1}, {.crowded_ns = 900'000, .home = 2}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_DOUBLE_EQ(member.result->one_row_s, 100e-6);
    EXPECT_DOUBLE_EQ(member.result->many_rows_s, 3e-3);
  }
}

TEST(ExchangeCalibration, BlocksOfMembersOnOneCoreCountWhereThereIsNoOther) {
  for (const Member& member : measured({{.crowded_ns = 900'000, .home = 0}, {.crowded_ns = 900'000, .home = 0}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_DOUBLE_EQ(member.result->one_row_s, 550e-6);
    EXPECT_LE(member.alone[0], 4 + 1 + 6) << "they try to part some times, not for ever";
  }
}

TEST(ExchangeCalibration, MembersOfOtherMachinesShareNoCore) {
  std::vector<Member> members{{.crowded_ns = 900'000}, {.crowded_ns = 900'000}};
  members[0].core = {.machine = 1, .cpu = 0};
  members[1].core = {.machine = 2, .cpu = 0};
  for (const Member& member : measured(members)) {
    EXPECT_DOUBLE_EQ(member.result->one_row_s, 550e-6);
    EXPECT_EQ(member.alone[0], 1 + 6);
  }
}

TEST(ExchangeCalibration, TheSlowestMemberSaysHowOftenAllMeasure) {
  const auto fast = measured({{.together_ns = 1000, .alone_ns = 10}, {}});
  EXPECT_EQ(fast[0].together[0], 2 + 64);
  EXPECT_EQ(fast[0].alone[0], 1 + 6);
  const Member quick{.together_ns = 1000, .alone_ns = 10, .many_together_ns = 1000, .many_alone_ns = 10};
  const auto slow = measured({quick, {.together_ns = 90'000'000, .alone_ns = 80'000'000}});
  EXPECT_EQ(slow[0].alone[0], 1 + 6);
  EXPECT_EQ(slow[1].alone[0], 1 + 2) << "that is its own affair";
  for (const Member& member : slow) {
    EXPECT_EQ(member.together[0], 2 + 3);
    EXPECT_EQ(member.together[1], 2 + 5);
  }
}

// Fails when members do not wait for each other's turns: what they then take is not what each takes alone.
TEST(ExchangeCalibration, WhoRunsAloneIsAlone) {
  std::atomic<int> running{0}, together{0};
  const auto when_alone = [&] {
    if (++running > 1) ++together;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // long enough to be met by who is not to run now
    --running;
  };
  for (const Member& member :
       measured({{.when_alone = when_alone}, {.when_alone = when_alone}, {.when_alone = when_alone}})) {
    EXPECT_TRUE(member.result);
    EXPECT_GE(member.alone[0], 1 + 2);
  }
  EXPECT_EQ(together, 0);
}

TEST(ExchangeCalibration, ComputingThatOutlastsTheClockIsNoNegativeExchange) {
  const auto members = measured({{.alone_ns = 1'000'100}, {}});
  ASSERT_TRUE(members[0].result);
  EXPECT_EQ(members[0].result->one_row_s, 0.0);
}

TEST(ExchangeCalibration, WhereOneMemberIsNotReadyNobodyMeasuresAndNothingFails) {
  for (const Member& member : measured({{}, {.ready = false}, {}})) {
    ASSERT_TRUE(member.result) << member.result.error().message;
    EXPECT_FALSE(member.result->measured());
    EXPECT_EQ(member.together[0] + member.alone[0], 0);
  }
}

TEST(ExchangeCalibration, AMemberThatDiesInTheMeasurementEndsItForAll) {
  for (const int block : {0, 1, 5, 27}) {
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
