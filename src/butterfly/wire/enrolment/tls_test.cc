// Who is let in and who is not, and what is left of bytes that were recorded or changed on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <list>
#include <thread>

#include "butterfly/base/sanitized_test.h"
#include "butterfly/wire/channel/dial.h"
#include "butterfly/wire/enrolment/certificates.h"
#include "butterfly/wire/enrolment/test_cluster_test.h"
#include "butterfly/wire/tcp/tcp_peers_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr ConnectionRole kEveryRole[] = {ConnectionRole::kControl, ConnectionRole::kData, ConnectionRole::kJoin,
                                         ConnectionRole::kStatus, ConnectionRole::kProbe};

/// A client with a TLS of its own making: whatever `context` says, no more checks than that.
std::string hello_with(const std::string& address, const TlsContext& context) {
  const auto patience = Patience::create(after_ms(5000), {}).value();
  auto stream = make_tls_stream(dial(address, address, *patience).value(), context, StreamSide::kClient).value();
  if (const Status done = complete_handshake(*stream, address, *patience); !done) return done.error().message;
  const HelloBytes hello = encode_hello({});
  if (const Status sent = send_all(*stream, hello, address, *patience); !sent) return sent.error().message;
  HelloReplyBytes reply{};
  const Status got = receive_all(*stream, reply, address, *patience);
  return got ? "welcome" : got.error().message;
}

/// One worker that listens, and everything it logs.
struct Fixture {
  LogCapture logged;
  TestCluster cluster;
  std::string worker_folder = cluster.join_files("worker-a");
  NodeAccess worker{.credentials = Credentials::load(worker_folder).value()};
  std::optional<AcceptLoop> loop{std::in_place, ListenOptions{.access = worker}};

  std::string address() const { return loop->address(); }
  /// Ends the listener and gives its log.
  std::string log_text() {
    loop.reset();
    return logged.text();
  }
};

TEST(Tls, AMemberIsWelcomeAndProvesItsName) {
  Fixture f;
  const auto client = connect_as(f.address(), f.cluster.coordinator(), ConnectionRole::kControl);
  ASSERT_TRUE(client) << client.error().message;
  const Arrival arrival = f.loop->wait_for_arrival();
  ASSERT_TRUE((*client)->send({.tag = 3}, after_ms(5000)));
  EXPECT_EQ(arrival.channel->receive({}, after_ms(5000)).value().tag, 3u);
}

// Fails when a listener with credentials reads a hello before TLS, or answers what is not TLS.
TEST(Tls, APlainClientHearsNothingAndLeavesOneLine) {
  Fixture f;
  const RawClient plain(f.address());
  plain.write(encode_hello({}));
  const auto said = plain.read_to_end();
  ASSERT_TRUE(said) << "still connected";
  EXPECT_TRUE(said->empty()) << said->size() << " bytes";
  EXPECT_EQ(f.loop->count(), 0);
  const std::string text = f.log_text();
  EXPECT_THAT(text, HasSubstr("does not speak TLS"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

// Fails when the listener asks for a certificate but does not insist.
TEST(Tls, AClientWithoutACertificateIsRefused) {
  Fixture f;
  EXPECT_THAT(hello_with(f.address(), make_tls_context(StreamSide::kClient).value()), HasSubstr("certificate"));
  EXPECT_EQ(f.loop->count(), 0);
  EXPECT_THAT(f.log_text(), HasSubstr("no certificate"));
}

// Fails when certificates are accepted that some authority signed, instead of ours.
TEST(Tls, AMemberOfAnotherClusterIsRefusedByBothSides) {
  Fixture f;
  const TestCluster other;
  const auto client = connect_as(f.address(), other.coordinator());
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message, HasSubstr("another cluster"));  // said by the client of the server

  // A client that does not mind whom it talks to.
  const TlsContext careless = make_tls_context(StreamSide::kClient).value();
  const std::string folder = other.join_files("worker-z");
  ASSERT_EQ(SSL_CTX_use_certificate_file(careless.get(), (folder + "/node.pem").c_str(), SSL_FILETYPE_PEM), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey_file(careless.get(), (folder + "/node.key").c_str(), SSL_FILETYPE_PEM), 1);
  EXPECT_THAT(hello_with(f.address(), careless), HasSubstr("another cluster"));
  EXPECT_EQ(f.loop->count(), 0);
  EXPECT_THAT(f.log_text(), HasSubstr("its certificate is of another cluster"));
}

TEST(Tls, AnExpiredCertificateIsRefused) {
  Fixture f;
  const auto client = connect_as(f.address(), f.cluster.join_expired("worker-b"));
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message, HasSubstr("expired"));
  EXPECT_EQ(f.loop->count(), 0);
  EXPECT_THAT(f.log_text(), HasSubstr("its certificate has expired"));
}

// Fails when the list of revocations is not checked, or read once and never again.
TEST(Tls, ARevokedNodeIsRefusedAsSoonAsTheListIsThere) {
  Fixture f;
  const NodeAccess leaver = f.cluster.join("worker-b");
  ASSERT_TRUE(connect_as(f.address(), leaver));
  f.loop->wait_for_arrival();
  ASSERT_TRUE(f.cluster.authority().revoke("worker-b"));
  f.cluster.publish_to(f.worker_folder);
  Result<ChannelPtr> client = make_error(ErrorCode::kTimeout, "not tried");
  for (int i = 0; i < 100; ++i) {  // files are looked at twice a second
    client = connect_as(f.address(), leaver);
    if (!client) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message, HasSubstr("revoked"));
  EXPECT_TRUE(connect_as(f.address(), f.cluster.coordinator())) << "others are still welcome";
  EXPECT_THAT(f.log_text(), HasSubstr("its certificate was revoked"));
}

// Fails when roles in certificates are not compared with what a connection is for.
TEST(Tls, AWorkerCannotActAsCoordinator) {
  Fixture f;
  const NodeAccess other = f.cluster.join("worker-b");
  EXPECT_FALSE(connect_as(f.address(), other, ConnectionRole::kControl));
  EXPECT_EQ(f.loop->count(), 0);
  for (const ConnectionRole role : {ConnectionRole::kData, ConnectionRole::kStatus, ConnectionRole::kProbe}) {
    EXPECT_TRUE(connect_as(f.address(), other, role)) << to_string(role);
  }
  const auto joined = connect_as(f.address(), other, ConnectionRole::kJoin);
  ASSERT_FALSE(joined) << "a worker cannot be joined";
  EXPECT_THAT(joined.error().message, HasSubstr("only a coordinator can be joined"));
  EXPECT_THAT(f.log_text(), HasSubstr("worker 'worker-b': its certificate is that of worker 'worker-b', only a "
                                      "coordinator's may open a control connection"));
}

TEST(Tls, ACoordinatorMayOpenEverything) {
  const NodeIdentity coordinator{.name = "c", .role = NodeRole::kCoordinator};
  for (const ConnectionRole role : kEveryRole) {
    EXPECT_TRUE(may_open(coordinator, role)) << to_string(role);
    EXPECT_TRUE(may_serve(coordinator, role)) << to_string(role);
  }
}

// Fails when a node with credentials falls back to plain text, on loopback or anywhere.
TEST(Tls, ANodeWithCredentialsDoesNotSpeakPlain) {
  const TestCluster cluster;
  const LogCapture logged;
  AcceptLoop plain;
  const auto client = connect_as(plain.address(), cluster.coordinator());
  ASSERT_FALSE(client);
  EXPECT_THAT(client.error().message, HasSubstr("speaks TLS only"));
  EXPECT_EQ(plain.count(), 0);
}

TEST(Tls, AnOlderTlsIsRefused) {
  Fixture f;
  const TlsContext old(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION), 1);
  SSL_CTX_set_mode(old.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  EXPECT_NE(hello_with(f.address(), old), "welcome");
  EXPECT_THAT(f.log_text(), HasSubstr("older TLS than 1.3"));
}

TEST(Tls, SilentAndHalfwayClientsDelayNobody) {
  Fixture f;
  const RawClient silent(f.address()), halfway(f.address());
  const unsigned char record[] = {22, 3, 1, 1, 0, 1, 0, 0, 252};  // a hello that never goes on
  halfway.write(std::as_bytes(std::span(record)));
  for (int i = 0; i < 3; ++i) {
    const auto client = connect_as(f.address(), f.cluster.coordinator());
    ASSERT_TRUE(client) << client.error().message;
    f.loop->wait_for_arrival();
  }
}

TEST(Tls, ASilentClientIsTurnedAwayAtTheDeadline) {
  Fixture f;
  f.loop.emplace(ListenOptions{.access = f.worker, .handshake_timeout = std::chrono::milliseconds(50)});
  const RawClient silent(f.address());
  const auto said = silent.read_to_end();
  ASSERT_TRUE(said) << "still connected";
  EXPECT_TRUE(said->empty());
  EXPECT_THAT(f.log_text(), HasSubstr("silent"));
}

TEST(Tls, ASiegeLeavesAFewLinesAndACount) {
  Fixture f;
  for (int i = 0; i < 200; ++i) {
    const RawClient noise(f.address());
    noise.write(as_bytes("this is not TLS at all, whatever else it may be"));
    EXPECT_TRUE(noise.read_to_end());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // the count is written when its second is over
  const std::string text = f.log_text();
  const auto lines = std::ranges::count(text, '\n');
  EXPECT_GE(lines, 2);
  EXPECT_LT(lines, 100) << "five a second, and a machine that takes 16 s for this is very slow";
  EXPECT_THAT(text, HasSubstr("more clients"));
}

TEST(Tls, ConnectingCanBeGivenUpDuringTls) {
  const TestCluster cluster;
  const auto listener = Listener::create({}).value();  // accepts in the kernel and never answers
  std::stop_source stop;
  std::thread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.request_stop();
  });
  ConnectOptions options;
  options.access = cluster.coordinator();
  options.stop = stop.get_token();
  const auto client = connect_tcp(listener->address(), options, after_ms(60'000));
  impatient.join();
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, ErrorCode::kCancelled);
}

/// Stands between a client and a server, and keeps or changes what passes.
class Relay {
 public:
  explicit Relay(const std::string& target)
      : target_(target), listener_(resolve("127.0.0.1:0", after_ms(1000)).value()[0]) {
    fd_ = listen_on(listener_, "relay").value();
    address_ = to_string(bound_address(fd_).value());
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() { thread_.join(); }
  std::string address() const { return address_; }
  /// From now on the last byte of every piece that the client sends is changed.
  void tamper() { tampering_ = true; }
  std::vector<std::byte> recorded() const {
    std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  void run() {
    pollfd waiting{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll_until(std::span(&waiting, 1), after_ms(5000)).value(), 1);
    const Descriptor client(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto patience = Patience::create(after_ms(5000), {}).value();
    const Descriptor server = dial(target_, target_, *patience).value();
    std::array<pollfd, 2> fds{{{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}}};
    while (poll_until(fds, after_ms(20'000)).value() > 0) {
      for (int i = 0; i < 2; ++i) {
        if (fds[i].revents == 0) continue;
        std::array<std::byte, 65536> buffer;
        const ssize_t got = ::recv(fds[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (got <= 0) return;
        const MutableByteSpan piece = MutableByteSpan(buffer).first(static_cast<std::size_t>(got));
        if (i == 0) {
          if (tampering_) piece.back() ^= std::byte{1};
          std::lock_guard lock(mutex_);
          recorded_.insert(recorded_.end(), piece.begin(), piece.end());
        }
        ::send(fds[1 - i].fd, piece.data(), piece.size(), MSG_NOSIGNAL);
      }
    }
  }

  const std::string target_;
  const SocketAddress listener_;
  Descriptor fd_;
  std::string address_;
  std::atomic<bool> tampering_{false};
  mutable std::mutex mutex_;
  std::vector<std::byte> recorded_;
  std::thread thread_;
};

// Fails when a session can be resumed, or when early data is read.
TEST(Tls, RecordedBytesOpenNothing) {
  Fixture f;
  std::vector<std::byte> recorded;
  {
    Relay relay(f.address());
    const auto client = connect_as(relay.address(), f.cluster.coordinator(), ConnectionRole::kControl);
    ASSERT_TRUE(client) << client.error().message;
    const Arrival arrival = f.loop->wait_for_arrival();
    ASSERT_TRUE((*client)->send({.tag = 3}, after_ms(5000)));
    EXPECT_EQ(arrival.channel->receive({}, after_ms(5000)).value().tag, 3u);
    recorded = relay.recorded();
    (*client)->close();
  }
  ASSERT_GT(recorded.size(), 500u);
  const RawClient thief(f.address());
  thief.write(recorded);
  EXPECT_TRUE(thief.read_to_end()) << "still connected";
  EXPECT_EQ(f.loop->count(), 1);
  EXPECT_THAT(f.log_text(), HasSubstr("refused"));
}

// Fails when records are not authenticated: a frame's own checksums would catch this flip, too, but not one by
// an attacker who computes them anew. So the message must come from TLS.
TEST(Tls, AByteChangedOnTheWayEndsTheConnection) {
  Fixture f;
  Relay relay(f.address());
  const auto client = connect_as(relay.address(), f.cluster.coordinator());
  ASSERT_TRUE(client) << client.error().message;
  const Arrival arrival = f.loop->wait_for_arrival();
  relay.tamper();
  ASSERT_TRUE((*client)->send({.tag = 3}, after_ms(5000)));
  const auto message = arrival.channel->receive({}, after_ms(5000));
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(message.error().message, HasSubstr("bad record mac"));
  (*client)->close();
}

// Fails when what TLS has decrypted already is forgotten before a wait.
TEST(Tls, ManyMessagesInOneRecordAreAllDelivered) {
  Fixture f;
  const auto client = connect_as(f.address(), f.cluster.coordinator());
  ASSERT_TRUE(client) << client.error().message;
  const Arrival arrival = f.loop->wait_for_arrival();
  for (int round = 0; round < 20; ++round) {
    for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE((*client)->send({.tag = i}, after_ms(5000)));
    for (std::uint64_t i = 0; i < 100; ++i) {
      const auto message = arrival.channel->receive({}, after_ms(5000));
      ASSERT_TRUE(message) << message.error().message;
      ASSERT_EQ(message->tag, i);
    }
  }
}

/// Between clients and a server, which it counts: turns one bit in the first piece that the first connection carries in
/// one direction.
class FlippingRelay {
 public:
  enum class From { kClient, kServer };
  struct Flip {
    From from = From::kClient;
    std::size_t bit = 0;
  };
  FlippingRelay(std::string target, std::optional<Flip> flip) : target_(std::move(target)), flip_(flip) {
    fd_ = listen_on(resolve("127.0.0.1:0", after_ms(1000)).value()[0], "relay").value();
    address_ = to_string(bound_address(fd_).value());
    thread_ = std::thread([this] { run(); });
  }
  ~FlippingRelay() {
    stop_.request_stop();
    thread_.join();
  }
  const std::string& address() const { return address_; }
  int connections() const { return connections_; }

 private:
  struct Pair {
    std::array<Descriptor, 2> ends;  // the client, the server
    bool damages = false;
  };

  void run() {
    std::list<Pair> pairs;
    while (!stop_.stop_requested()) {
      std::vector<pollfd> fds{{fd_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs) {
        for (const Descriptor& end : pair.ends) fds.push_back({end.get(), POLLIN, 0});
      }
      if (poll_until(fds, after_ms(5)).value() == 0) continue;
      std::size_t at = 1;
      for (auto pair = pairs.begin(); pair != pairs.end(); at += 2) {
        pair = carry(*pair, fds[at], fds[at + 1]) ? std::next(pair) : pairs.erase(pair);
      }
      if (fds[0].revents == 0) continue;
      Descriptor client(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const auto patience = Patience::create(after_ms(5000), {}).value();
      pairs.push_back({.ends = {std::move(client), dial(target_, target_, *patience).value()},
                       .damages = connections_++ == 0 && flip_});
    }
  }

  /// Whether the pair is still connected.
  bool carry(Pair& pair, const pollfd& client, const pollfd& server) const {
    for (const int from : {0, 1}) {
      if ((from == 0 ? client : server).revents == 0) continue;
      std::array<std::byte, 65536> buffer;
      const ssize_t got = ::recv(pair.ends[static_cast<std::size_t>(from)].get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return false;
      if (pair.damages && from == static_cast<int>(flip_->from)) {
        buffer[flip_->bit / 8] ^= static_cast<std::byte>(1 << flip_->bit % 8);
        pair.damages = false;
      }
      ::send(pair.ends[static_cast<std::size_t>(1 - from)].get(), buffer.data(), static_cast<std::size_t>(got),
             MSG_NOSIGNAL);
    }
    return true;
  }

  const std::string target_;
  const std::optional<Flip> flip_;
  Descriptor fd_;
  std::string address_;
  std::atomic<int> connections_{0};
  std::stop_source stop_;
  std::thread thread_;
};

constexpr std::size_t kRecordHeaderBits = 40;     // type, version, length
constexpr std::size_t kHandshakeHeaderBits = 32;  // of the hello inside: type, length

// Fails when a hello that is no TLS record any more counts as a peer that speaks no TLS, and is given up.
TEST(Tls, AHelloWhoseFramingIsDamagedIsSentAgain) {
  Fixture f;
  // A length that grew is waited for until the listener's deadline.
  f.loop.emplace(ListenOptions{.access = f.worker, .handshake_timeout = std::chrono::milliseconds(200)});
  constexpr std::size_t kStride = kSanitized ? 3 : 1;
  for (const auto from : {FlippingRelay::From::kClient, FlippingRelay::From::kServer}) {
    for (std::size_t bit = 0; bit < kRecordHeaderBits + kHandshakeHeaderBits; bit += kStride) {
      const FlippingRelay relay(f.address(), FlippingRelay::Flip{.from = from, .bit = bit});
      const auto client = connect_as(relay.address(), f.cluster.coordinator());
      EXPECT_TRUE(client) << "bit " << bit << " from end " << static_cast<int>(from) << ": " << client.error().message;
      EXPECT_LE(relay.connections(), kHandshakesMax);
    }
  }
}

// Fails when a client that is not let in asks again, as though its handshake had been damaged.
TEST(Tls, ARefusalIsNotTriedAgain) {
  Fixture f;
  const TestCluster other;
  const auto refuses = [&](const NodeAccess& access, ConnectionRole role) {
    const FlippingRelay relay(f.address(), std::nullopt);
    EXPECT_FALSE(connect_as(relay.address(), access, role));
    EXPECT_EQ(relay.connections(), 1);
  };
  refuses(other.coordinator(), ConnectionRole::kData);                 // the client refuses the server
  refuses(f.cluster.join_expired("worker-b"), ConnectionRole::kData);  // the server refuses the certificate
  refuses(f.cluster.join("worker-c"), ConnectionRole::kControl);       // and what it is used for
  EXPECT_EQ(f.loop->count(), 0);
}

TEST(Tls, CredentialsOpenEveryAddress) {
  const TestCluster cluster;
  EXPECT_TRUE(Listener::create({.address = "0.0.0.0:0", .access = cluster.coordinator()}));
}

}  // namespace
}  // namespace butterfly
