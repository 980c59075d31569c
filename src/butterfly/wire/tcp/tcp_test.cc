// Connections that begin badly, end badly or come from a stranger.
#include "butterfly/wire/channel/tcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "butterfly/wire/tcp/tcp_peers_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

TEST(Address, FormsAreRead) {
  EXPECT_EQ(parse_address("[::1]:7000").value().host, "::1");
  EXPECT_EQ(parse_address("host-a:65535").value().port, 65535);
  for (const char* bad : {"", "7000", "host", ":7000", "host:", "host:65536", "host:-1", "::1:7000", "host:70x"}) {
    EXPECT_EQ(parse_address(bad).error().code, ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(Address, LoopbackIsKnown) {
  for (const char* loopback : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "localhost:1"}) {
    EXPECT_TRUE(is_loopback(resolve(loopback, after_ms(5000)).value().front())) << loopback;
  }
  for (const char* open : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "128.0.0.1:1"}) {
    EXPECT_FALSE(is_loopback(resolve(open, after_ms(5000)).value().front())) << open;
  }
}

TEST(Address, NumbersHaveOneFormAndNamesHaveNone) {
  for (const char* form : {"127.0.0.1:7000", "[::ffff:127.0.0.1]:7000", "[::ffff:7f00:1]:7000", "127.0.0.1:07000"}) {
    EXPECT_EQ(canonical_address(form), "127.0.0.1:7000") << form;
  }
  for (const char* form : {"[::1]:1", "[0:0::1]:1", "[0000:0000:0000:0000:0000:0000:0000:0001]:1"}) {
    EXPECT_EQ(canonical_address(form), "[::1]:1") << form;
  }
  for (const char* name : {"localhost:1", "127.1:1", "0x7f.1:1", "2130706433:1", "[fe80::1%lo]:1", "::1:1", "", "1"}) {
    EXPECT_EQ(canonical_address(name), std::nullopt) << name;
  }
}

TEST(Listener, RefusesAddressesThatOthersCanReach) {
  for (const char* open : {"0.0.0.0:0", "[::]:0"}) {
    const auto listener = Listener::create({.address = open});
    ASSERT_FALSE(listener);
    EXPECT_EQ(listener.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(listener.error().message, HasSubstr("loopback only"));
  }
  EXPECT_TRUE(Listener::create({.address = "0.0.0.0:0", .access = {.policy = AddressPolicy::kAnyAddress}}));
}

TEST(Listener, SaysThatAPortIsInUse) {
  const auto first = Listener::create({}).value();
  const auto second = Listener::create({.address = first->address()});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr("another program uses that port"));
}

TEST(Listener, APortIsFreeAgainAfterItsConnectionsEnded) {
  std::string address;
  {
    AcceptLoop loop;
    address = loop.address();
    const auto client = connect_tcp(address, {}, after_ms(5000)).value();
    const Arrival arrival = loop.wait_for_arrival();
    arrival.channel->close();  // the server's side closes first: the port is left in TIME_WAIT
  }
  EXPECT_TRUE(Listener::create({.address = address}));
}

TEST(Listener, HandsOverWhatTheClientSaidOfItself) {
  AcceptLoop loop;
  const SessionId session = make_session_id();
  const auto client = connect_tcp(
      loop.address(), {.introduction = {.role = ConnectionRole::kControl, .session = session, .label = "weights"}},
      after_ms(5000));
  ASSERT_TRUE(client) << client.error().message;
  const Arrival arrival = loop.wait_for_arrival();
  EXPECT_EQ(arrival.introduction.session, session);
  EXPECT_EQ(arrival.introduction.label, "weights");
  EXPECT_EQ(arrival.introduction.role, ConnectionRole::kControl);
}

TEST(Listener, WorksOverIpv6) {
  auto probe = Listener::create({.address = "[::1]:0"});
  if (!probe) GTEST_SKIP() << "no IPv6 here: " << probe.error().message;
  probe->reset();
  AcceptLoop loop({.address = "[::1]:0"});
  const auto client = connect_tcp(loop.address(), {}, after_ms(5000));
  ASSERT_TRUE(client) << client.error().message;
  ASSERT_TRUE((*client)->send({.tag = 5}, after_ms(5000)));
  EXPECT_EQ(loop.wait_for_arrival().channel->receive({}, after_ms(5000)).value().tag, 5u);
}

TEST(Listener, SilentAndGarblingClientsDelayNobody) {
  AcceptLoop loop({.handshake_timeout = std::chrono::milliseconds(60'000)});
  const RawClient silent(loop.address()), half(loop.address()), garbling(loop.address());
  half.write(ByteSpan(encode_hello({})).first(kHelloBytes - 1));
  garbling.write(as_bytes("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"));
  EXPECT_TRUE(garbling.read_to_end()) << "garbage is turned away at once";
  const auto client = connect_tcp(loop.address(), {}, after_ms(5000));
  ASSERT_TRUE(client) << client.error().message;
  loop.wait_for_arrival();
  EXPECT_EQ(loop.count(), 1);
}

TEST(Listener, ASilentClientIsTurnedAwayAtTheDeadline) {
  AcceptLoop loop({.handshake_timeout = std::chrono::milliseconds(50)});
  const RawClient silent(loop.address());
  const auto said = silent.read_to_end();
  ASSERT_TRUE(said) << "still connected";
  EXPECT_TRUE(said->empty());
}

TEST(Listener, TheOldestUnfinishedHandshakeGivesWay) {
  AcceptLoop loop({.handshake_timeout = std::chrono::milliseconds(60'000), .handshakes_max = 2});
  const RawClient first(loop.address()), second(loop.address()), third(loop.address());
  EXPECT_TRUE(first.read_to_end()) << "the first of three must go when two may wait";
  EXPECT_TRUE(connect_tcp(loop.address(), {}, after_ms(5000)));
}

TEST(Listener, ASlowHelloIsPutTogether) {
  AcceptLoop loop;
  const RawClient slow(loop.address());
  const HelloBytes hello = encode_hello({.label = "slow"});
  for (const std::byte& byte : hello) {
    slow.write(ByteSpan(&byte, 1));
    if (&byte == &hello[5]) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(loop.wait_for_arrival().introduction.label, "slow");
}

TEST(Listener, AnotherVersionIsAnsweredWithOurs) {
  AcceptLoop loop;
  const RawClient old(loop.address());
  old.write(encode_hello({}, kProtocolVersion + 6));
  HelloReplyBytes reply{};
  old.read_exactly(reply);
  EXPECT_EQ(decode_hello_reply(reply).value(), kProtocolVersion);
  EXPECT_EQ(old.read_to_end()->size(), 0u);
  EXPECT_EQ(loop.count(), 0);
}

TEST(Listener, InterruptAndCloseWakeAccept) {
  const auto listener = Listener::create({}).value();
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    listener->interrupt();
  });
  EXPECT_EQ(listener->accept(after_ms(60'000)).error().code, ErrorCode::kCancelled);
  waker.join();
  EXPECT_EQ(listener->accept(after_ms(20)).error().code, ErrorCode::kTimeout) << "one interrupt, one return";
  listener->close();
  EXPECT_EQ(listener->accept(after_ms(60'000)).error().code, ErrorCode::kCancelled);
}

/// A server of a few lines, to answer what ours never would.
class RawServer {
 public:
  explicit RawServer(std::vector<std::byte> answer) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = resolve("127.0.0.1:0", after_ms(1000)).value().front();
    EXPECT_EQ(::bind(fd_.get(), any.get(), any.length), 0);
    EXPECT_EQ(::listen(fd_.get(), 1), 0);
    bound_.length = sizeof(bound_.storage);
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&bound_.storage), &bound_.length), 0);
    thread_ = std::thread([this, said = std::move(answer)] {
      const Descriptor client(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::array<std::byte, kHelloBytes> hello;
      EXPECT_EQ(::recv(client.get(), hello.data(), hello.size(), MSG_WAITALL), static_cast<ssize_t>(kHelloBytes));
      EXPECT_EQ(::send(client.get(), said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
      ::shutdown(client.get(), SHUT_WR);
      while (::recv(client.get(), hello.data(), 1, 0) > 0) {
      }  // until the client is gone, by FIN or RST
    });
  }
  ~RawServer() { thread_.join(); }
  std::string address() const { return to_string(bound_); }

 private:
  Descriptor fd_;
  SocketAddress bound_;
  std::thread thread_;
};

template <typename Bytes>
std::vector<std::byte> as_vector(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(Connect, NamesBothVersionsWhenTheyDiffer) {
  const RawServer server(as_vector(encode_hello_reply(kProtocolVersion + 1)));
  const auto client = connect_tcp(server.address(), {}, after_ms(5000));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kProtocol);
  EXPECT_EQ(client.error().message,
            "worker " + server.address() +
                fmt::format(" speaks protocol {}, this program {}", kProtocolVersion + 1, kProtocolVersion));
}

/// Carries connections to `target`, the first `times` of them with a bit of the client's first bytes flipped.
class FlippingProxy {
 public:
  FlippingProxy(std::string target, std::size_t byte, int times)
      : target_(std::move(target)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress any = resolve("127.0.0.1:0", after_ms(1000)).value().front();
    EXPECT_EQ(::bind(listener_.get(), any.get(), any.length), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    bound_.length = sizeof(bound_.storage);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound_.storage), &bound_.length), 0);
    thread_ = std::thread([this, byte, times] {
      for (;;) {
        const Descriptor near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!near.valid()) return;
        const RawClient far(target_);
        HelloBytes hello{};
        if (::recv(near.get(), hello.data(), hello.size(), MSG_WAITALL) != static_cast<ssize_t>(hello.size())) continue;
        if (++carried_ <= times) hello[byte] ^= std::byte{0x10};
        far.write(hello);
        HelloReplyBytes reply{};
        const ssize_t got = ::recv(far.fd(), reply.data(), reply.size(), MSG_WAITALL);
        if (got > 0) static_cast<void>(::send(near.get(), reply.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL));
      }
    });
  }
  ~FlippingProxy() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string address() const { return to_string(bound_); }
  int carried() const { return carried_; }

 private:
  const std::string target_;
  const Descriptor listener_;
  SocketAddress bound_;
  std::atomic<int> carried_{0};
  std::thread thread_;
};

TEST(Connect, AHelloThatWasDamagedOnItsWayIsSaidAgain) {
  AcceptLoop loop;
  for (const std::size_t byte : {0, 8, 10, 12, 13, 20, 95}) {
    const FlippingProxy proxy(loop.address(), byte, 2);
    const auto client = connect_tcp(proxy.address(), {}, after_ms(5000));
    EXPECT_TRUE(client) << "byte " << byte << ": " << client.error().message;
    EXPECT_EQ(proxy.carried(), 3);
  }
}

TEST(Connect, AHelloThatIsAlwaysDamagedEndsAsUnreachable) {
  AcceptLoop loop;
  const FlippingProxy proxy(loop.address(), 20, 1000);
  const auto client = connect_tcp(proxy.address(), {}, after_ms(5000));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(proxy.carried(), kHandshakesMax);
}

TEST(Connect, AServerThatHangsUpIsNotAskedAgain) {
  const RawServer server(std::vector<std::byte>{});  // takes one connection only
  const auto client = connect_tcp(server.address(), {}, after_ms(5000));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(client.error().message, HasSubstr("closed the connection during the handshake"));
}

TEST(Connect, AnAttemptCanBeGivenUp) {
  // A peer that accepts and never answers.
  const auto listener = Listener::create({}).value();
  std::stop_source stop;
  std::thread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  const auto client = connect_tcp(listener->address(), {.stop = stop.get_token()}, after_ms(60'000));
  impatient.join();
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kCancelled);
}

TEST(Connect, SaysThatSomethingElseListensThere) {
  const RawServer server(as_vector(as_bytes("HTTP/1.1 400 Bad Request\r\n")));
  const auto client = connect_tcp(server.address(), {}, after_ms(5000));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kProtocol);
}

TEST(Connect, AnUnreachablePortIsSaidAtOnce) {
  std::string address = Listener::create({}).value()->address();  // free again by now
  const auto client = connect_tcp(address, {}, after_ms(60'000));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(client.error().message, HasSubstr(address));
}

TEST(Connect, AServerThatNeverAnswersCostsNoMoreThanTheDeadline) {
  const auto listener = Listener::create({}).value();  // the kernel connects, nobody accepts
  const auto client = connect_tcp(listener->address(), {}, after_ms(50));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kTimeout);
}

TEST(Connect, AnUnknownHostIsNamed) {
  const auto client = connect_tcp("no-such-host.invalid:1", {}, after_ms(5000));
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message, HasSubstr("no-such-host.invalid"));
}

/// A connection whose client side is written by hand.
struct RawPeer {
  AcceptLoop loop;
  RawClient client{loop.address()};
  ChannelPtr channel;
  explicit RawPeer(const ListenOptions& options = {}) : loop(options) {
    client.write(encode_hello({}));
    HelloReplyBytes reply{};
    client.read_exactly(reply);
    channel = loop.wait_for_arrival().channel;
  }
};

TEST(TcpChannel, AFrameThatArrivesByteByByteSurvivesDeadlines) {
  RawPeer peer;
  const std::uint32_t checksum = crc32c(as_bytes("abcHELLO"));
  const FrameHeaderBytes header =
      encode_frame_header({.type = 9, .tag = 4, .meta_bytes = 3, .payload_bytes = 5, .body_checksum = checksum});
  std::vector<std::byte> bytes(header.begin(), header.end());
  for (const char c : std::string("abcHELLO")) bytes.push_back(static_cast<std::byte>(c));
  for (std::size_t i = 0; i + 1 < bytes.size(); ++i) {
    peer.client.write(ByteSpan(&bytes[i], 1));
    EXPECT_EQ(peer.channel->receive({}, after_ms(1)).error().code, ErrorCode::kTimeout);
  }
  peer.client.write(ByteSpan(bytes).last(1));
  const auto message = peer.channel->receive({}, after_ms(5000));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(as_text(message->meta), "abc");
  EXPECT_EQ(as_text(message->payload.bytes), "HELLO");
}

TEST(TcpChannel, GarbageInsteadOfAFrameEndsTheChannel) {
  RawPeer peer;
  peer.client.write(as_bytes("this is not a frame, whatever else it may be"));
  EXPECT_EQ(peer.channel->receive({}, after_ms(5000)).error().code, ErrorCode::kProtocol);
  EXPECT_EQ(peer.channel->receive({}, after_ms(5000)).error().code, ErrorCode::kUnavailable);
}

TEST(TcpChannel, AnOversizeAnnouncementIsRefusedBeforeTheAllocatorIsAsked) {
  RawPeer peer;
  peer.client.write(encode_frame_header({.payload_bytes = (1ull << 32) + 1}));
  bool asked = false;
  const auto message = peer.channel->receive(
      [&](std::uint64_t bytes) {
        asked = true;
        return allocate_payload(bytes);
      },
      after_ms(5000));
  EXPECT_EQ(message.error().code, ErrorCode::kProtocol);
  EXPECT_FALSE(asked);
}

// Fails when the deadline counts only while nothing comes.
TEST(TcpChannel, APeerThatNeverStopsSendingDoesNotOutlastTheDeadline) {
  RawPeer peer;
  peer.client.write(encode_frame_header({.payload_bytes = 1ull << 32}));
  const std::jthread sender([&](const std::stop_token& stop) {
    const std::vector<std::byte> some(1 << 16);
    while (!stop.stop_requested() && ::send(peer.client.fd(), some.data(), some.size(), MSG_NOSIGNAL) > 0) {
    }
  });
  EXPECT_EQ(peer.channel->receive({}, after_ms(100)).error().code, ErrorCode::kTimeout);
  peer.channel.reset();  // close() alone would not wake a sender that fills the window
}

TEST(TcpChannel, APackedPayloadEndsAConnectionThatCarriesNoTensors) {
  for (const ConnectionRole role : {ConnectionRole::kControl, ConnectionRole::kData, ConnectionRole::kJoin,
                                    ConnectionRole::kStatus, ConnectionRole::kProbe}) {
    AcceptLoop loop;
    const auto client = connect_tcp(loop.address(), {.introduction = {.role = role}}, after_ms(5000)).value();
    client->compress({.mode = Compression::kLz4});
    const Payload payload = allocate_payload(100'000).value();
    for (std::size_t i = 0; i < payload.bytes.size(); ++i)
      payload.bytes[i] = static_cast<std::byte>(i % 2 * i * 2654435761u >> 13);
    ASSERT_TRUE(client->send({.payload = payload}, after_ms(5000)));
    const auto server = loop.wait_for_arrival().channel;
    bool asked = false;
    const auto message = server->receive(
        [&](std::uint64_t bytes) {
          asked = true;
          return allocate_payload(bytes);
        },
        after_ms(5000));
    EXPECT_EQ(message.has_value(), role == ConnectionRole::kData) << static_cast<int>(role);
    EXPECT_EQ(asked, role == ConnectionRole::kData);
    ASSERT_GT(client->stats().bytes_saved, 0u) << "it was packed";
  }
}

TEST(TcpChannel, APeerKilledInTheMiddleOfAMessageIsNoticedAtOnce) {
  auto listener = Listener::create({}).value();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RawClient client(listener->address());
    client.write(encode_hello({}));
    HelloReplyBytes reply{};
    client.read_exactly(reply);
    client.write(encode_frame_header({.payload_bytes = 1000}));
    client.write(std::vector<std::byte>(10));
    ::pause();
    ::_exit(0);
  }
  const auto arrival = listener->accept(after_ms(20'000));
  ASSERT_TRUE(arrival) << arrival.error().message;
  EXPECT_EQ(arrival->channel->receive({}, after_ms(300)).error().code, ErrorCode::kTimeout);
  ::kill(child, SIGKILL);
  const auto message = arrival->channel->receive({}, after_ms(60'000));
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(message.error().message, HasSubstr("127.0.0.1:"));
  EXPECT_THAT(message.error().message, HasSubstr("in the middle of a message"));
  int status = 0;
  ::waitpid(child, &status, 0);
}

}  // namespace
}  // namespace butterfly
