#include "butterfly/wire/exchange/inproc_exchange.h"

#include <gtest/gtest.h>

#include <thread>

namespace butterfly {
namespace {

/// Calls work(exchange) on a thread for each member.
template <typename Work>
void on_members(std::vector<std::unique_ptr<Exchange>>& ends, const Work& work) {
  std::vector<std::jthread> threads;
  for (auto& end : ends) threads.emplace_back([&work, &end] { work(*end); });
}

/// What `from` gives `to` in one round: a length and contents that no other pair or round has.
std::vector<std::byte> gift(int from, int to, int round) {
  std::vector<std::byte> bytes(static_cast<std::size_t>((from * 7 + to * 3 + round) % 50));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(from * 31 + to * 17 + round * 5) + i);
  }
  return bytes;
}

Status run_round(Exchange& exchange, int round) {
  const auto members = static_cast<std::size_t>(exchange.size());
  std::vector<std::vector<std::byte>> give(members);
  std::vector<std::vector<std::byte>> take(members);
  std::vector<ByteSpan> to(members);
  std::vector<MutableByteSpan> from(members);
  for (int r = 0; r < exchange.size(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    give[at] = gift(exchange.rank(), r, round);
    take[at].resize(gift(r, exchange.rank(), round).size());
    to[at] = give[at];
    from[at] = take[at];
  }
  BF_TRY(exchange.exchange(to, from));
  for (int r = 0; r < exchange.size(); ++r) {
    if (r == exchange.rank()) continue;
    EXPECT_EQ(take[static_cast<std::size_t>(r)], gift(r, exchange.rank(), round));
  }
  return {};
}

TEST(InprocExchange, EveryMemberGetsWhatEachOtherOneGaveItRoundAfterRound) {
  for (const int members : {1, 2, 3, 8}) {
    auto ends = make_inproc_exchange(members);
    on_members(ends, [](Exchange& exchange) {
      for (int round = 0; round < 200; ++round) {
        const Status status = run_round(exchange, round);
        ASSERT_TRUE(status) << status.error().message;
      }
    });
  }
}

TEST(InprocExchange, SizesThatDisagreeAreAnErrorForAll) {
  auto ends = make_inproc_exchange(2);
  on_members(ends, [](Exchange& exchange) {
    std::vector<std::byte> bytes(8);
    const auto other = static_cast<std::size_t>(1 - exchange.rank());
    std::vector<ByteSpan> to(2);
    std::vector<MutableByteSpan> from(2);
    to[other] = bytes;
    std::vector<std::byte> taken(exchange.rank() == 0 ? 8 : 4);
    from[other] = taken;
    Status status = exchange.exchange(to, from);
    if (status) status = exchange.exchange(to, from);  // the one whose sizes agreed learns it now at the latest
    ASSERT_FALSE(status);
    EXPECT_TRUE(status.error().code == ErrorCode::kProtocol || status.error().code == ErrorCode::kUnavailable);
    if (status.error().code == ErrorCode::kProtocol) {
      EXPECT_EQ(status.error().message, "member 0 of the exchange gave 8 bytes, member 1 expected 4");
    }
  });
}

TEST(InprocExchange, AnAbortWakesWaitingMembersAndNoLaterExchangeSucceeds) {
  auto ends = make_inproc_exchange(3, {.timeout_ms = 600'000});
  std::jthread aborter([&] { ends[2]->abort(); });
  std::vector<std::jthread> waiting;
  for (int r = 0; r < 2; ++r) {
    waiting.emplace_back([&end = *ends[static_cast<std::size_t>(r)]] {
      for (int attempt = 0; attempt < 2; ++attempt) {
        const Status status = run_round(end, 0);
        ASSERT_FALSE(status);
        EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
      }
    });
  }
}

TEST(InprocExchange, AMemberThatGoesAwayLeavesNobodyWaiting) {
  auto ends = make_inproc_exchange(2, {.timeout_ms = 600'000});
  std::jthread leaver([gone = std::move(ends[1])]() mutable { gone.reset(); });
  const Status status = run_round(*ends[0], 0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

TEST(InprocExchange, AMemberThatNeverComesIsADeadline) {
  auto ends = make_inproc_exchange(2, {.timeout_ms = 20});
  const Status status = run_round(*ends[0], 0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(status.error().message, "member 1 did not come to the exchange within 20 ms");
}

}  // namespace
}  // namespace butterfly
