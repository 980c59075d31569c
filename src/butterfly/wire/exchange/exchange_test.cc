// What every kind of exchange promises, tested on all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/wire/exchange/exchange_mesh_test.h"
#include "butterfly/wire/tcp/tcp_channel.h"

namespace butterfly {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

#if defined(BUTTERFLY_TINY) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kLargeBytes = 200'003;
#else
constexpr std::size_t kLargeBytes = 4 << 20;
#endif

class ExchangeTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ExchangeTest, EveryMemberGetsWhatTheOthersSentWhateverTheSize) {
  for (const int members : {1, 2, 3, kSanitized ? 5 : 8}) {
    const ExchangeMesh mesh(GetParam(), members);
    for (const std::size_t bytes : {0, 1, 100, 8192, 32768, 32769, 70'001}) {
      expect_rounds(mesh, kSanitized ? 2 : 3, [&](std::size_t, std::size_t) { return bytes; });
    }
  }
}

TEST_P(ExchangeTest, TransfersLargerThanAnyBufferPassEachOther) {
  for (const int members : {2, 3, 8}) {
    const ExchangeMesh mesh(GetParam(), members);
    expect_rounds(mesh, 1, [&](std::size_t, std::size_t) { return kLargeBytes / (members == 8 ? 4 : 1); });
  }
}

TEST_P(ExchangeTest, EachPairMayMoveAnotherNumberOfBytesAndNoneInOneDirection) {
  const ExchangeMesh mesh(GetParam(), 4);
  expect_rounds(mesh, 5, [](std::size_t sender, std::size_t receiver) {
    return sender > receiver ? 0 : (sender * 4 + receiver) * 10'007;
  });
  // In a circle: a member that sent everything before it received anything would wait for the next one for ever.
  expect_rounds(
      mesh, 2, [](std::size_t sender, std::size_t receiver) { return (sender + 1) % 4 == receiver ? kLargeBytes : 0; });
  expect_rounds(
      mesh, 2, [](std::size_t sender, std::size_t receiver) { return (sender + 1) % 4 == receiver ? kLargeBytes : 9; });
}

TEST_P(ExchangeTest, ManySmallOnesFollowEachOther) {
  const ExchangeMesh mesh(GetParam(), 3);
  expect_rounds(mesh, 500, [](std::size_t sender, std::size_t receiver) { return 1 + sender * 300 + receiver; });
}

TEST_P(ExchangeTest, SizesThatDisagreeAreNamed) {
  const ExchangeMesh mesh(GetParam(), 2);
  mesh.run([&](std::size_t me) {
    ExchangeBuffers buffers(2, me, 0, [&](std::size_t sender, std::size_t) {
      return sender == 0 && me == 1 ? 64u : 100u;  // member 1 expects 64 bytes of what are 100
    });
    const Status status = mesh.exchanges[me]->exchange(buffers.to, buffers.from);
    if (me == 0) return;  // it may have what it was due
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
    EXPECT_THAT(status.error().message, AllOf(HasSubstr("100"), HasSubstr("64")));
  });
}

TEST_P(ExchangeTest, APieceOfTheRightSizeFromALargerTransferIsRefused) {
  const ExchangeMesh mesh(GetParam(), 2);
  std::array<Status, 2> seen;
  mesh.run([&](std::size_t me) {
    ExchangeBuffers buffers(2, me, 0, [&](std::size_t, std::size_t) { return me == 1 ? 32u * 1024 : 64u * 1024; });
    seen[me] = mesh.exchanges[me]->exchange(buffers.to, buffers.from);
  });
  ASSERT_FALSE(seen[0] || seen[1]);
  // The second to look may only see that the first gave up.
  const Error& first = seen[seen[0].error().code == ErrorCode::kProtocol ? 0 : 1].error();
  EXPECT_EQ(first.code, ErrorCode::kProtocol) << first.message;
  EXPECT_THAT(first.message, AllOf(HasSubstr("65536"), HasSubstr("32768")));
}

TEST_P(ExchangeTest, AMemberThatComesAfterAnExchangeThatTheOthersKnowNothingOfIsRefused) {
  const ExchangeMesh mesh(GetParam(), 2);
  mesh.run([&](std::size_t me) {
    // Nothing moves, so nobody notices yet.
    if (me == 0) {
      ASSERT_TRUE(mesh.exchanges[0]->exchange(std::vector<ByteSpan>(2), std::vector<MutableByteSpan>(2)));
    }
    ExchangeBuffers buffers(2, me, 0, [](std::size_t, std::size_t) { return 10; });
    const Status status = mesh.exchanges[me]->exchange(buffers.to, buffers.from);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().code, AnyOf(Eq(ErrorCode::kProtocol), Eq(ErrorCode::kUnavailable)));
  });
}

TEST_P(ExchangeTest, AbortWakesEveryone) {
  const ExchangeMesh mesh(GetParam(), 3);
  mesh.run([&](std::size_t me) {
    if (me == 2) {
      mesh.exchanges[2]->abort();
      mesh.exchanges[2]->abort();
      return;
    }
    ExchangeBuffers buffers(3, me, 0, [](std::size_t, std::size_t) { return 8192; });
    const Status status = mesh.exchanges[me]->exchange(buffers.to, buffers.from);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
  });
}

TEST_P(ExchangeTest, AnAbortHereWakesTheThreadThatWaitsHere) {
  const ExchangeMesh mesh(GetParam(), 2);
  std::thread waiter([&] {
    ExchangeBuffers buffers(2, 0, 0, [](std::size_t, std::size_t) { return 8192; });
    const Status status = mesh.exchanges[0]->exchange(buffers.to, buffers.from);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
  });
  mesh.exchanges[0]->abort();
  waiter.join();
}

TEST_P(ExchangeTest, ClosingTheChannelsEndsIt) {
  // What ends an epoch knows nothing of exchanges.
  const ExchangeMesh mesh(GetParam(), 3);
  mesh.run([&](std::size_t me) {
    if (me == 2) {
      for (const auto& channel : mesh.channels[2]) {
        if (channel) channel->close();
      }
      return;
    }
    ExchangeBuffers buffers(3, me, 0, [](std::size_t, std::size_t) { return kLargeBytes; });
    const Status status = mesh.exchanges[me]->exchange(buffers.to, buffers.from);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
  });
}

TEST_P(ExchangeTest, AMemberThatNeverComesCostsNoMoreThanTheTimeout) {
  const auto channels = connect_all(GetParam() == "shared" ? "tcp" : GetParam(), 2);
  std::vector<std::unique_ptr<GroupExchange>> exchanges(2);
  ExchangeMesh::run_threads(2, [&](std::size_t me) {
    exchanges[me] = GroupExchange::create(static_cast<int>(me), channels[me],
                                          {.shared_memory = GetParam() == "shared" ? SharedMemoryUse::kAllowed
                                                                                   : SharedMemoryUse::kForbidden,
                                           .member_timeout = std::chrono::milliseconds(100)})
                        .value();
  });
  ExchangeBuffers buffers(2, 0, 0, [](std::size_t, std::size_t) { return 10; });
  const Status status = exchanges[0]->exchange(buffers.to, buffers.from);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout) << status.error().message;
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExchangeTest, ::testing::Values("inproc", "tcp", "tls", "shared"),
                         [](const auto& kind) { return kind.param; });

TEST(ChannelExchange, MessagesOfAnotherEpochAreRefused) {
  const auto channels = connect_all("tcp", 2);
  ASSERT_TRUE(channels[1][0]->send({.type = kExchangeMessage,
                                    .epoch = Epoch(6),
                                    .tag = (std::uint64_t{1} << 40) | 10,
                                    .payload = allocate_payload(10).value()},
                                   after_ms(5000)));
  ChannelExchange exchange(0, channels[0], {.epoch = Epoch(7)});
  ExchangeBuffers buffers(2, 0, 0, [](std::size_t sender, std::size_t) { return sender == 1 ? 10 : 0; });
  const Status status = exchange.exchange(buffers.to, buffers.from);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("epoch 6"), HasSubstr("epoch 7")));
}

#ifndef BUTTERFLY_TINY  // where no connection takes a message at once
TEST(ChannelExchange, AFewKilobytesGoStraightFromAndToTheBuffersOfTheCaller) {
  const ExchangeMesh mesh("tcp", 2);
  expect_rounds(mesh, 20, [](std::size_t, std::size_t) { return 8192; });
  const auto& channel = dynamic_cast<const TcpChannel&>(*mesh.channels[0][1]);
  EXPECT_EQ(channel.copies().kept_bytes, 0u);
  EXPECT_EQ(channel.copies().staged_bytes + channel.copies().sealed_bytes + channel.copies().opened_bytes, 0u);
}
#endif

TEST(Channel, ABorrowedPayloadIsTheCallersAgainThoughThePeerReadsItLater) {
  constexpr std::size_t kMessages = kSanitized ? 6 : 20;
  for (const char* kind : {"inproc", "tcp", "tls"}) {
    const auto channels = connect_all(kind, 2);
    std::vector<std::byte> bytes(kLargeBytes);
    for (std::size_t message = 0; message < kMessages; ++message) {
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = exchanged_byte(0, 1, message, i);
      ASSERT_TRUE(channels[0][1]->send_borrowed({.tag = message, .payload = {.owner = {}, .bytes = bytes}})) << kind;
      std::ranges::fill(bytes, std::byte{0xee});
    }
    for (std::size_t message = 0; message < kMessages; ++message) {
      const auto got = channels[1][0]->receive({}, after_ms(20'000));
      ASSERT_TRUE(got) << got.error().message;
      ASSERT_EQ(got->tag, message);
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = exchanged_byte(0, 1, message, i);
      ASSERT_TRUE(std::ranges::equal(got->payload.bytes, bytes)) << kind << ", message " << message;
    }
  }
}

TEST(Channel, IsBrokenForBothSidesOnceEitherClosesItThoughMuchIsUnread) {
  for (const char* kind : {"inproc", "tcp", "tls"}) {
    const auto channels = connect_all(kind, 2);
    EXPECT_FALSE(channels[0][1]->broken() || channels[1][0]->broken()) << kind;
    ASSERT_TRUE(channels[0][1]->send({.payload = allocate_payload(1000).value()}, after_ms(5000)));
    EXPECT_FALSE(channels[0][1]->broken() || channels[1][0]->broken()) << kind;
    channels[0][1]->close();
    EXPECT_TRUE(channels[0][1]->broken()) << kind;
    EXPECT_TRUE(channels[1][0]->broken()) << kind;
  }
}

}  // namespace
}  // namespace butterfly
