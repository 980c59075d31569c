#include "butterfly/cluster/control/link_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/cluster/membership/fake_stage_test.h"

namespace butterfly {
namespace {

using Freshness = LinkBook::Freshness;
using ::testing::HasSubstr;

TEST(LinkBook, ALinkIsMeasuredOnceUnlessItIsAskedForAnew) {
  int measured = 0;
  LinkBook book([&](const std::string& address) -> Result<LinkStatus> {
    return LinkStatus{.to = address, .link = {.latency_us = static_cast<double>(++measured), .gb_per_s = 1}};
  });
  EXPECT_EQ(book.look_up("a:1", Freshness::kRemembered).link.latency_us, 1);
  EXPECT_EQ(book.look_up("a:1", Freshness::kRemembered).link.latency_us, 1);
  EXPECT_GT(book.look_up("a:1", Freshness::kRemembered).age_s, 0);
  EXPECT_EQ(book.look_up("b:1", Freshness::kRemembered).link.latency_us, 2);
  EXPECT_EQ(book.look_up("a:1", Freshness::kMeasuredNow).link.latency_us, 3);
  EXPECT_EQ(book.look_up("a:1", Freshness::kRemembered).link.latency_us, 3);
}

TEST(LinkBook, AFailureIsToldAndNotRemembered) {
  int measured = 0;
  LinkBook book([&](const std::string& address) -> Result<LinkStatus> {
    if (++measured == 1) return make_error(ErrorCode::kUnavailable, "nobody there");
    return LinkStatus{.to = address};
  });
  EXPECT_EQ(book.look_up("a:1", Freshness::kRemembered).error, "nobody there");
  EXPECT_EQ(book.look_up("a:1", Freshness::kRemembered).error, "");
}

TEST(Links, AWorkerMeasuresThreeSizesAndRemembersThem) {
  ThreadWorker a, b;
  const LinkQuestion question{.to = {b.address()}};
  const auto first = ask_links(a.address(), question, {}, after_ms(20'000)).value();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].error, "");
  EXPECT_GT(first[0].link.latency_us, 0);
  EXPECT_GT(first[0].link.gb_per_s, 0);
  EXPECT_GE(first[0].link.wake_us, 0);
  ASSERT_EQ(first[0].times.size(), 3u);
  EXPECT_EQ(first[0].times[0].bytes, 64u);
  EXPECT_EQ(first[0].times[1].bytes, 8192u);
  EXPECT_EQ(first[0].times[2].bytes, 1u << 20);
  const auto second = ask_links(a.address(), question, {}, after_ms(20'000)).value();
  EXPECT_EQ(second[0].link.latency_us, first[0].link.latency_us);
  EXPECT_GT(second[0].age_s, 0);
}

TEST(Links, ACoordinatorGetsTheMatrixOfItsMembers) {
  ThreadWorker a, b, c;
  const auto membership =
      Membership::create({.workers = {a.address(), b.address(), c.address()}}, after_ms(20'000)).value();
  const auto links = membership->links(membership->members(), after_ms(20'000));
  ASSERT_EQ(links.size(), 3u);
  for (std::size_t from = 0; from < 3; ++from) {
    ASSERT_EQ(links[from].size(), 3u);
    for (std::size_t to = 0; to < 3; ++to) EXPECT_EQ(links[from][to].gb_per_s > 0, from != to) << from << " " << to;
  }
}

// Fails when anybody who reaches an open port can send a worker to any address.
TEST(Links, AnOpenWorkerMeasuresForItsCoordinatorOnly) {
  const NodeAccess open{.policy = AddressPolicy::kAnyAddress};
  ThreadWorker a({.access = open, .drain_timeout = std::chrono::milliseconds(50)});
  ThreadWorker b({.access = open, .drain_timeout = std::chrono::milliseconds(50)});
  const auto refused = ask_links(a.address(), {.to = {b.address()}}, open, after_ms(20'000));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("for its coordinator only"));
  const auto membership =
      Membership::create({.workers = {a.address(), b.address()}, .cluster = {.access = open}}, after_ms(20'000))
          .value();
  EXPECT_GT(membership->links(membership->members(), after_ms(20'000))[0][1].gb_per_s, 0);
  EXPECT_FALSE(ask_links(a.address(), {.to = {b.address()}}, open, after_ms(20'000)));
}

TEST(Rebalance, AWorkerHasNoPlanToChange) {
  ThreadWorker worker;
  const auto asked = ask_rebalance(worker.address(), {}, after_ms(20'000));
  ASSERT_FALSE(asked);
  EXPECT_THAT(asked.error().message, HasSubstr("no coordinator"));
}

TEST(Rebalance, ACoordinatorIsAskedAndItsAnswerComesBack) {
  const auto membership =
      Membership::create({.join_at = "127.0.0.1:0",
                          .rebalance = []() -> Result<std::string> { return std::string("nothing changes"); }},
                         after_ms(20'000))
          .value();
  EXPECT_EQ(ask_rebalance(membership->join_address(), {}, after_ms(20'000)).value(), "nothing changes");
}

}  // namespace
}  // namespace butterfly
