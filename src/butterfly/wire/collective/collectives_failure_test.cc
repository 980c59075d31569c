// What happens to collectives whose members go away, disagree or never come: nobody hangs, everybody hears of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/wire/collective/collectives_mesh_test.h"
#include "butterfly/wire/collective/piece_channels.h"
#include "butterfly/wire/exchange/transfer_tag.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// As the error that cluster's ends_epoch() knows.
bool would_end_epoch(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout ||
         error.code == ErrorCode::kProtocol;
}

using Work = std::function<Status(Collectives&)>;

Status sum(Collectives& end, std::size_t count, AllReduceAlgorithm algorithm, const ReduceFunction& add = add_floats) {
  std::vector<float> values = brought_by(end.rank(), count);
  return end.all_reduce(bytes_of(values), sizeof(float), add, algorithm);
}

/// Every operation, large and small.
std::vector<std::pair<std::string, Work>> all_operations() {
  std::vector<std::pair<std::string, Work>> operations;
  for (const std::size_t count : {std::size_t{100}, std::size_t{20'011}}) {
    for (const auto algorithm :
         {AllReduceAlgorithm::kDirect, AllReduceAlgorithm::kRing, AllReduceAlgorithm::kRecursiveHalving}) {
      operations.emplace_back(fmt::format("{} of {}", to_string(algorithm), count),
                              [=](Collectives& end) { return sum(end, count, algorithm); });
    }
    operations.emplace_back(fmt::format("all_to_all of {}", count), [=](Collectives& end) {
      const auto members = static_cast<std::size_t>(end.size());
      std::vector<std::byte> bytes(members * count);
      std::vector<ByteSpan> to(members, ByteSpan(bytes).first(count));
      std::vector<std::byte> room(members * count);
      std::vector<MutableByteSpan> from;
      for (std::size_t i = 0; i < members; ++i) from.push_back(MutableByteSpan(room).subspan(i * count, count));
      return end.all_to_all(to, from);
    });
    operations.emplace_back(fmt::format("all_gather of {}", count), [=](Collectives& end) {
      const auto members = static_cast<std::size_t>(end.size());
      std::vector<std::byte> bytes(members * count * 16);
      std::vector<MutableByteSpan> parts;
      for (std::size_t i = 0; i < members; ++i) {
        parts.push_back(MutableByteSpan(bytes).subspan(i * count * 16, count * 16));
      }
      return end.all_gather(parts);
    });
    operations.emplace_back(fmt::format("broadcast of {}", count), [=](Collectives& end) {
      std::vector<std::byte> bytes(count * 16);
      return end.broadcast(bytes, 2);  // the one that goes away is needed
    });
  }
  operations.emplace_back("barrier", [](Collectives& end) { return end.barrier(); });
  return operations;
}

class CollectivesFailureTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CollectivesFailureTest, AMemberThatGoesAwayInAnyOperationFailsAllOthersAtOnce) {
  for (const auto& [name, work] : all_operations()) {
    CollectivesMesh mesh(GetParam(), 4);
    const auto begin = std::chrono::steady_clock::now();
    ExchangeMesh::run_threads(4, [&, &name = name, &work = work](std::size_t me) {
      // Member 2 leaves after the first; the others are in the next one, or learn it in one of those that follow.
      Status status = work(*mesh.ends[me]);
      if (me == 2) {
        mesh.leave(me);
        return;
      }
      for (int i = 0; i < 4 && status; ++i) status = work(*mesh.ends[me]);
      ASSERT_FALSE(status) << name << ", member " << me;
      EXPECT_TRUE(would_end_epoch(status.error())) << name << ": " << status.error().message;
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15)) << name << " waited for the timeout";
  }
}

TEST_P(CollectivesFailureTest, AMemberThatGoesAwayWhileOthersReadAndAddFailsThem) {
  for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kRecursiveHalving}) {
    CollectivesMesh mesh(GetParam(), 3);
    std::atomic<bool> adding{false};
    ExchangeMesh::run_threads(3, [&](std::size_t me) {
      const auto add = [&](MutableByteSpan into, ByteSpan from) {
        if (me == 1 && !adding.exchange(true)) mesh.ends[1]->abort();
        add_floats(into, from);
      };
      const Status status = sum(*mesh.ends[me], 100'003, algorithm, add);
      ASSERT_FALSE(status) << to_string(algorithm) << ", member " << me;
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
    });
  }
}

TEST_P(CollectivesFailureTest, WhoWaitsForAMessageOfAMemberThatGoesAwayFailsAndSoDoAll) {
  CollectivesMesh mesh(GetParam(), 3);
  ExchangeMesh::run_threads(3, [&](std::size_t me) {
    if (me == 2) return mesh.leave(2);
    std::array<std::byte, 8> room{};
    // Rank 0 waits for rank 1, who lives, and hears of the loss from it.
    const Status status = mesh.ends[me]->receive(static_cast<int>(me) + 1, 7, room);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
  });
}

TEST_P(CollectivesFailureTest, AMessageOfAnotherSizeIsNamed) {
  CollectivesMesh mesh(GetParam(), 2);
  ExchangeMesh::run_threads(2, [&](std::size_t me) {
    std::array<std::byte, 8> bytes{};
    if (me == 0) {
      ASSERT_TRUE(mesh.ends[0]->send(1, 7, bytes));
      return;
    }
    const Status status = mesh.ends[1]->receive(0, 7, std::span(bytes).first(4));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol) << status.error().message;
  });
}

TEST_P(CollectivesFailureTest, AnAbortHereWakesTheThreadThatWaitsHere) {
  CollectivesMesh mesh(GetParam(), 2);
  std::thread waiter([&] {
    const Status status = sum(*mesh.ends[0], 5003, AllReduceAlgorithm::kAuto);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
  });
  mesh.ends[0]->abort();
  mesh.ends[0]->abort();
  waiter.join();
  EXPECT_FALSE(mesh.ends[0]->barrier());
  EXPECT_FALSE(mesh.ends[1]->barrier());
}

TEST_P(CollectivesFailureTest, SizesThatDisagreeAreNamed) {
  for (const auto algorithm :
       {AllReduceAlgorithm::kDirect, AllReduceAlgorithm::kRing, AllReduceAlgorithm::kRecursiveHalving}) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{9000}}) {
      const CollectivesMesh mesh(GetParam(), 3);
      const auto seen =
          mesh.run([&](Collectives& end) { return sum(end, count + (end.rank() == 1 ? 1 : 0), algorithm); });
      bool named = false;
      for (const Status& status : seen) {
        if (status) continue;  // who had all before the first noticed
        EXPECT_TRUE(would_end_epoch(status.error())) << status.error().message;
        named = named || status.error().code == ErrorCode::kProtocol;
      }
      EXPECT_TRUE(named) << to_string(algorithm) << " of " << count;
    }
  }
}

TEST_P(CollectivesFailureTest, OperationsThatDisagreeAreRefused) {
  const CollectivesMesh mesh(GetParam(), 2);
  const auto seen = mesh.run(
      [&](Collectives& end) { return end.rank() == 0 ? end.barrier() : sum(end, 20'011, AllReduceAlgorithm::kRing); });
  ASSERT_FALSE(seen[0] && seen[1]);
  for (const Status& status : seen) EXPECT_TRUE(status || would_end_epoch(status.error()));
  EXPECT_TRUE((!seen[0] && seen[0].error().code == ErrorCode::kProtocol) ||
              (!seen[1] && seen[1].error().code == ErrorCode::kProtocol));
}

TEST_P(CollectivesFailureTest, AMemberThatNeverComesCostsNoMoreThanTheTimeout) {
  for (const std::size_t count : {std::size_t{10}, std::size_t{9000}}) {
    const CollectivesMesh mesh(GetParam(), 3, {.member_timeout = std::chrono::milliseconds(100)});
    const auto seen = mesh.run([&](Collectives& end) -> Status {
      if (end.rank() == 2) return {};
      return sum(end, count, AllReduceAlgorithm::kRing);
    });
    ASSERT_FALSE(seen[0] || seen[1]);
    const ErrorCode first = seen[0].error().code, second = seen[1].error().code;
    EXPECT_TRUE(first == ErrorCode::kTimeout || second == ErrorCode::kTimeout);
    EXPECT_TRUE(would_end_epoch(seen[0].error()) && would_end_epoch(seen[1].error()));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CollectivesFailureTest, ::testing::Values("threads", "inproc", "tcp", "memory"),
                         [](const auto& kind) { return kind.param; });

TEST(Collectives, WhoGivesUpBetweenThreadsWaitsForThoseWhoReadItsMemory) {
  const CollectivesMesh mesh("threads", 2);
  std::atomic<bool> reading{false};
  std::atomic<bool> given_up{false};
  ExchangeMesh::run_threads(2, [&](std::size_t me) {
    bool first = true;
    const auto add = [&](MutableByteSpan into, ByteSpan from) {
      if (!std::exchange(first, false)) return add_floats(into, from);
      if (me == 0) {
        reading = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the other one has time to go wrong
        EXPECT_FALSE(given_up) << "its memory is still read";
      } else {
        while (!reading) std::this_thread::yield();
        mesh.ends[1]->abort();
      }
      add_floats(into, from);
    };
    EXPECT_FALSE(sum(*mesh.ends[me], 100'003, AllReduceAlgorithm::kAuto, add));
    if (me == 1) given_up = true;
  });
}

TEST(Collectives, PiecesAndExchangesOfAnotherEpochAreRefused) {
  for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kDirect}) {
    const auto channels = connect_all("tcp", 2);
    const auto now = make_collectives(0, channels[0], {.epoch = Epoch(7)});
    const auto stale = make_collectives(1, channels[1], {.epoch = Epoch(6)});
    std::array<Status, 2> seen;
    ExchangeMesh::run_threads(2, [&](std::size_t me) { seen[me] = sum(me == 0 ? *now : *stale, 100, algorithm); });
    ASSERT_FALSE(seen[0] || seen[1]);
    const Error& first = seen[seen[0].error().code == ErrorCode::kProtocol ? 0 : 1].error();
    EXPECT_EQ(first.code, ErrorCode::kProtocol);
    EXPECT_THAT(first.message, AllOf(HasSubstr("epoch 6"), HasSubstr("epoch 7")));
  }
}

TEST(Collectives, APieceOfTheRightSizeFromAnotherOperationIsRefused) {
  const auto channels = connect_all("tcp", 2);
  // The second ring of 16 bytes, where the first is under way.
  ASSERT_TRUE(channels[1][0]->send(
      {.type = kPieceMessage, .epoch = Epoch(7), .tag = transfer_tag(2, 16), .payload = allocate_payload(8).value()},
      after_ms(5000)));
  const auto end = make_collectives(0, channels[0], {.epoch = Epoch(7)});
  const Status status = sum(*end, 4, AllReduceAlgorithm::kRing);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("collective 2"), HasSubstr("collective 1")));
}

}  // namespace
}  // namespace butterfly
