// What both engines promise, tested on both.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "butterfly/trace/trace.h"
#include "butterfly/wire/channel/inproc.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/enrolment/test_cluster_test.h"

namespace butterfly {
namespace {

using Pair = std::pair<ChannelPtr, ChannelPtr>;

Pair make_tcp_pair(const NodeAccess& server = {}, const NodeAccess& dialling = {}) {
  auto listener = Listener::create({.access = server}).value();
  Result<ChannelPtr> client = make_error(ErrorCode::kUnavailable, "not connected yet");
  std::thread dialler([&] { client = connect_tcp(listener->address(), {.access = dialling}, after_ms(5000)); });
  auto arrival = listener->accept(after_ms(5000));
  dialler.join();
  return {std::move(client).value(), std::move(arrival.value().channel)};
}

Payload pattern(std::size_t bytes, unsigned seed) {
  Payload payload = allocate_payload(bytes).value();
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::byte& byte : payload.bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return payload;
}

/// Bytes that codecs make smaller.
Payload floats(std::size_t bytes) {
  Payload payload = pattern(bytes, 14);
  for (std::size_t i = 3; i < bytes; i += 4) payload.bytes[i] = std::byte{0x3f};
  return payload;
}

bool same(ByteSpan a, ByteSpan b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

class ChannelTest : public ::testing::TestWithParam<std::string> {
 protected:
  Pair make_pair() const {
    if (GetParam() == "inproc") return make_inproc_pair();
    if (GetParam() == "tcp") return make_tcp_pair();
    static const TestCluster cluster;
    static const NodeAccess worker = cluster.join("worker-a");
    return make_tcp_pair(worker, cluster.coordinator());
  }
};

TEST_P(ChannelTest, ASpanOfReceivingHasTheMessagesBytesAndBeginsWithTheFirst) {
  auto [near, far] = make_pair();
  trace::reset();
  trace::set_recording(true);
  std::atomic<bool> waits{false};
  std::thread receiver([&, channel = far.get()] {
    waits = true;
    EXPECT_TRUE(channel->receive({}, after_ms(20'000)));
  });
  while (!waits) std::this_thread::yield();
  for (int i = 0; i < 50; ++i) std::this_thread::yield();  // it waits by now, or soon: both are right
  const std::uint64_t before = trace::now_ns();
  ASSERT_TRUE(near->send({.payload = pattern(5000, 3)}, after_ms(20'000)));
  receiver.join();
  trace::set_recording(false);
  std::map<trace::Zone, std::vector<trace::Span>> spans;
  for (const trace::Span& span : trace::drain().spans) spans[span.zone].push_back(span);
  ASSERT_EQ(spans[trace::Zone::kSend].size(), 1u);
  ASSERT_EQ(spans[trace::Zone::kReceive].size(), 1u);
  const trace::Span& received = spans[trace::Zone::kReceive].front();
  EXPECT_GE(received.begin_ns, before);
  EXPECT_GE(received.work.bytes, 5000u);
  EXPECT_EQ(spans[trace::Zone::kSend].front().work.bytes, received.work.bytes);
  EXPECT_EQ(trace::read(trace::Counter::kWireBytesReceived), received.work.bytes) << "each byte is counted once";
  EXPECT_EQ(trace::read(trace::Counter::kWireBytesSent), received.work.bytes);
}

TEST_P(ChannelTest, OddSizesArriveUnchangedAndInOrder) {
  auto [near, far] = make_pair();
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size <= 70'000; size = size < 130 ? size + 1 : size + 1013) sizes.push_back(size);
  std::thread sender([&, channel = near.get()] {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Message message{.type = 5, .epoch = Epoch(2), .tag = i, .meta = {}, .payload = pattern(sizes[i], 1)};
      message.meta.assign(i % 7, std::byte{42});
      const Status sent = channel->send(std::move(message), after_ms(20'000));
      ASSERT_TRUE(sent) << sent.error().message;
    }
  });
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto message = far->receive({}, after_ms(20'000));
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->tag, i);
    EXPECT_EQ(message->type, 5);
    EXPECT_EQ(message->epoch, Epoch(2));
    EXPECT_EQ(message->meta.size(), i % 7);
    ASSERT_TRUE(same(message->payload.bytes, pattern(sizes[i], 1).bytes)) << sizes[i];
  }
  sender.join();
  EXPECT_EQ(near->stats().messages_sent, sizes.size());
  EXPECT_EQ(far->stats().messages_received, sizes.size());
  EXPECT_EQ(near->stats().bytes_sent, far->stats().bytes_received);
}

TEST_P(ChannelTest, OneLargeMessageArrivesUnchanged) {
  auto [near, far] = make_pair();
#if defined(BUTTERFLY_TINY) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kBytes = 3'000'001;
#else
  constexpr std::size_t kBytes = 64u << 20;
#endif
  const Payload payload = pattern(kBytes, 3);
  ASSERT_TRUE(near->send({.payload = payload}, after_ms(20'000)));  // returns though nobody reads yet
  ASSERT_TRUE(near->send({.tag = 1}, after_ms(20'000)));
  const auto message = far->receive({}, after_ms(20'000));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_TRUE(same(message->payload.bytes, payload.bytes));
  EXPECT_EQ(far->receive({}, after_ms(20'000)).value().tag, 1u);
}

TEST_P(ChannelTest, ReceiveGivesUpAtItsDeadlineAndTheChannelLivesOn) {
  auto [near, far] = make_pair();
  const auto nothing = far->receive({}, after_ms(20));
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, ErrorCode::kTimeout);
  ASSERT_TRUE(near->send({.tag = 7}, after_ms(5000)));
  EXPECT_EQ(far->receive({}, after_ms(5000)).value().tag, 7u);
}

TEST_P(ChannelTest, ASenderWhoIsNotReadGetsATimeoutAndLosesNoMessage) {
  auto [near, far] = make_pair();
  const Payload payload = pattern(1 << 20, 4);
  std::uint64_t sent = 0;
  Status status;
  while (sent < 10'000 && (status = near->send({.tag = sent, .payload = payload}, after_ms(50)))) ++sent;
  ASSERT_FALSE(status) << "bounded queues must fill";
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  for (std::uint64_t i = 0; i < sent; ++i) {
    const auto message = far->receive({}, after_ms(20'000));
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->tag, i);
  }
  EXPECT_FALSE(far->receive({}, after_ms(20)));
  ASSERT_TRUE(near->send({.tag = 99}, after_ms(5000)));
  EXPECT_EQ(far->receive({}, after_ms(5000)).value().tag, 99u);
}

TEST_P(ChannelTest, CloseWakesAReceiverOnEitherSide) {
  for (const bool own : {true, false}) {
    auto [near, far] = make_pair();
    std::thread closer([&, channel = own ? far.get() : near.get()] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      channel->close();
    });
    const auto nothing = far->receive({}, after_ms(60'000));
    closer.join();
    ASSERT_FALSE(nothing);
    EXPECT_EQ(nothing.error().code, ErrorCode::kUnavailable) << nothing.error().message;
    EXPECT_FALSE(far->send({}, after_ms(100)).has_value() && own);
  }
}

TEST_P(ChannelTest, CloseWakesASenderWhoIsNotRead) {
  auto [near, far] = make_pair();
  std::thread closer([&, channel = near.get()] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    channel->close();
  });
  const Payload payload = pattern(1 << 20, 5);
  Status status;
  for (int i = 0; i < 10'000 && status; ++i) status = near->send({.payload = payload}, after_ms(60'000));
  closer.join();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
}

TEST_P(ChannelTest, MessagesSentBeforeThePeerClosedAreStillReceived) {
  auto [near, far] = make_pair();
  ASSERT_TRUE(near->send({.tag = 1}, after_ms(1000)));
  ASSERT_TRUE(near->send({.tag = 2}, after_ms(1000)));
  near.reset();
  EXPECT_EQ(far->receive({}, after_ms(5000)).value().tag, 1u);
  EXPECT_EQ(far->receive({}, after_ms(5000)).value().tag, 2u);
  EXPECT_EQ(far->receive({}, after_ms(5000)).error().code, ErrorCode::kUnavailable);
}

TEST_P(ChannelTest, TheSenderIsToldOfAMessageOverTheLimits) {
  auto [near, far] = make_pair();
  Message message;
  message.meta.resize((1u << 20) + 1);
  EXPECT_EQ(near->send(std::move(message), after_ms(1000)).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(ChannelTest, WaitsAreCountedByHowTheyEnded) {
  auto [near, far] = make_pair();
  std::thread sender([&, channel = near.get()] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // far beyond the spin
    ASSERT_TRUE(channel->send({}, after_ms(5000)));
  });
  ASSERT_TRUE(far->receive({}, after_ms(5000)));
  sender.join();
  EXPECT_EQ(far->stats().waits_blocked, 1u);
  EXPECT_EQ(far->stats().waits_spun, 0u);
}

TEST_P(ChannelTest, BothDirectionsRunAtOnce) {
  auto [near, far] = make_pair();
  constexpr std::uint64_t kMessages = 200;
  const auto send_all = [](Channel* channel) {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(channel->send({.tag = i, .payload = pattern(i * 37, 11)}, after_ms(20'000)));
    }
  };
  const auto receive_all = [](Channel* channel) {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      const auto message = channel->receive({}, after_ms(20'000));
      ASSERT_TRUE(message) << message.error().message;
      ASSERT_EQ(message->tag, i);
    }
  };
  std::thread a(send_all, near.get()), b(send_all, far.get()), c(receive_all, near.get()), d(receive_all, far.get());
  for (std::thread* thread : {&a, &b, &c, &d}) thread->join();
}

INSTANTIATE_TEST_SUITE_P(Engines, ChannelTest, ::testing::Values("inproc", "tcp", "tls"),
                         [](const auto& engine) { return engine.param; });

TEST(InprocChannel, ThePayloadIsHandedOverNotCopied) {
  auto [near, far] = make_inproc_pair();
  const Payload payload = pattern(4096, 6);
  ASSERT_TRUE(near->send({.payload = payload}, after_ms(1000)));
  const PayloadAllocator never = [](std::uint64_t) -> Result<Payload> {
    return make_error(ErrorCode::kNoMemory, "inproc allocates nothing");
  };
  const auto message = far->receive(never, after_ms(1000));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->payload.bytes.data(), payload.bytes.data());
  EXPECT_EQ(message->payload.owner, payload.owner);
}

TEST(InprocChannel, ClosingFreesWhatTheReceiverWillNeverRead) {
  auto [near, far] = make_inproc_pair();
  Payload payload = pattern(16, 7);
  const std::weak_ptr<void> watch = payload.owner;
  ASSERT_TRUE(near->send({.payload = std::move(payload)}, after_ms(1000)));
  far->close();
  EXPECT_TRUE(watch.expired());
}

TEST(TcpChannel, ThePayloadIsReadIntoTheAllocatorsBuffer) {
  auto [near, far] = make_tcp_pair();
  const Payload buffer = allocate_payload(100'000).value();
  const Payload payload = pattern(100'000, 8);
  ASSERT_TRUE(near->send({.payload = payload}, after_ms(5000)));
  const auto message = far->receive([&](std::uint64_t) -> Result<Payload> { return buffer; }, after_ms(5000));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->payload.bytes.data(), buffer.bytes.data());
  EXPECT_TRUE(same(buffer.bytes, payload.bytes));
}

TEST(TcpChannel, AnAllocatorThatRefusesEndsTheChannel) {
  auto [near, far] = make_tcp_pair();
  ASSERT_TRUE(near->send({.payload = pattern(10, 9)}, after_ms(5000)));
  const PayloadAllocator refuses = [](std::uint64_t) -> Result<Payload> {
    return make_error(ErrorCode::kNoMemory, "the pool is full");
  };
  EXPECT_EQ(far->receive(refuses, after_ms(5000)).error().code, ErrorCode::kNoMemory);
  EXPECT_EQ(far->receive({}, after_ms(5000)).error().code, ErrorCode::kUnavailable);
}

TEST(TcpChannel, APayloadThatIsStillOnItsWayIsKeptAlive) {
  auto [near, far] = make_tcp_pair();
  const Payload expected = pattern(16 << 20, 10);
  Payload payload = pattern(16 << 20, 10);
  const std::weak_ptr<void> watch = payload.owner;
  ASSERT_TRUE(near->send({.payload = std::move(payload)}, after_ms(5000)));
  EXPECT_FALSE(watch.expired()) << "16 MiB do not fit into the socket's buffer";
  const auto message = far->receive({}, after_ms(20'000));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_TRUE(same(message->payload.bytes, expected.bytes));
}

TEST_P(ChannelTest, PackedPayloadsArriveUnchangedAndWhatTheySavedIsCounted) {
  for (const Compression mode : {Compression::kLz4, Compression::kZstd, Compression::kAuto}) {
    auto [near, far] = make_pair();
    near->compress({.mode = mode});
    std::vector<Payload> payloads;
    for (const std::size_t bytes : {100u, 8191u, 8192u, 70'001u, 1'000'000u}) payloads.push_back(floats(bytes));
    for (const Payload& payload : payloads) {
      ASSERT_TRUE(near->send({.meta = {std::byte{1}}, .payload = payload}, after_ms(20'000)));
      const auto message = far->receive({}, after_ms(20'000));
      ASSERT_TRUE(message) << message.error().message;
      EXPECT_TRUE(same(message->payload.bytes, payload.bytes));
    }
    const ChannelStats sent = near->stats();
    EXPECT_EQ(sent.bytes_sent, far->stats().bytes_received);
    if (GetParam() == "inproc") {
      EXPECT_EQ(sent.bytes_saved, 0u);
      continue;
    }
    if (mode == Compression::kAuto) continue;  // what it measures is its own affair
    EXPECT_EQ(mode == Compression::kLz4 ? sent.lz4_messages : sent.zstd_messages, 3u)
        << "payloads below 8 KiB are left";
    EXPECT_EQ(sent.lz4_messages + sent.zstd_messages, 3u);
    EXPECT_GT(sent.bytes_saved, 100'000u);
    EXPECT_LT(sent.bytes_sent + sent.bytes_saved, 1'100'000u);
  }
}

#ifndef BUTTERFLY_TINY
TEST_P(ChannelTest, ASmallMessageWithMetaAndPayloadIsOneWrite) {
  if (GetParam() == "inproc") GTEST_SKIP() << "nothing is written between threads";
  auto [near, far] = make_pair();
  const std::uint64_t before = near->stats().writes;
  for (const std::size_t bytes : {0u, 1u, 500u, 8000u, 16'000u}) {
    Message message{.payload = pattern(bytes, 12)};
    message.meta.assign(300, std::byte{3});
    ASSERT_TRUE(near->send(std::move(message), after_ms(5000)));
    ASSERT_TRUE(far->receive({}, after_ms(5000)));
  }
  EXPECT_EQ(near->stats().writes - before, 5u);
}
#endif

TEST_P(ChannelTest, AReaderWhoStopsReadingBoundsWhatTheSenderHolds) {
  auto [near, far] = make_pair();
  constexpr std::size_t kQueueMax = 8;
  std::vector<std::weak_ptr<void>> held;
  Status status;
  while (held.size() < 10'000 && status) {
    Payload payload = pattern(1 << 20, 13);
    held.push_back(payload.owner);
    status = near->send({.payload = std::move(payload)}, after_ms(50));
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
  const auto alive = std::ranges::count_if(held, [](const auto& owner) { return !owner.expired(); });
  EXPECT_LE(static_cast<std::size_t>(alive), kQueueMax) << "of " << held.size() << " that were sent";
}
}  // namespace
}  // namespace butterfly
