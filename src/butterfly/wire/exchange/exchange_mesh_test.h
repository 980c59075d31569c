// Members of a group as threads of a test, with an exchange of any kind between them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <thread>

#include "butterfly/wire/channel/inproc.h"
#include "butterfly/wire/channel/tcp.h"
#include "butterfly/wire/enrolment/test_cluster_test.h"
#include "butterfly/wire/exchange/group_exchange.h"

namespace butterfly {

using ChannelTable = std::vector<std::vector<std::shared_ptr<Channel>>>;  // [member][other]

inline std::pair<ChannelPtr, ChannelPtr> connect_pair(Listener& listener, const NodeAccess& dialling) {
  Result<ChannelPtr> client = make_error(ErrorCode::kUnavailable, "not connected yet");
  std::thread dialler([&] { client = connect_tcp(listener.address(), {.access = dialling}, after_ms(5000)); });
  auto arrival = listener.accept(after_ms(5000));
  dialler.join();
  return {std::move(client).value(), std::move(arrival.value().channel)};
}

/// "inproc", "tcp", "tls": channels between all pairs.
inline ChannelTable connect_all(const std::string& kind, int members) {
  static const TestCluster cluster;
  static const NodeAccess worker = cluster.join("worker-a");
  const NodeAccess access = kind == "tls" ? worker : NodeAccess{};
  const auto listener = Listener::create({.access = access}).value();
  const auto count = static_cast<std::size_t>(members);
  ChannelTable table(count, std::vector<std::shared_ptr<Channel>>(count));
  for (std::size_t low = 0; low < count; ++low) {
    for (std::size_t high = low + 1; high < count; ++high) {
      auto [one, other] = kind == "inproc" ? make_inproc_pair() : connect_pair(*listener, access);
      table[low][high] = std::move(one);
      table[high][low] = std::move(other);
    }
  }
  return table;
}

class ExchangeMesh {
 public:
  /// "inproc", "tcp", "tls" or "shared": the last over channels of kind tcp. With `apart`, the last member may not
  /// share memory.
  explicit ExchangeMesh(const std::string& kind, int members, bool apart = false)
      : channels(connect_all(kind == "shared" ? "tcp" : kind, members)), exchanges(static_cast<std::size_t>(members)) {
    run([&](std::size_t member) {
      const bool shares = kind == "shared" && !(apart && member + 1 == exchanges.size());
      auto made =
          GroupExchange::create(static_cast<int>(member), channels[member],
                                {.epoch = Epoch(3),
                                 .shared_memory = shares ? SharedMemoryUse::kAllowed : SharedMemoryUse::kForbidden,
                                 .member_timeout = std::chrono::milliseconds(20'000)});
      ASSERT_TRUE(made) << made.error().message;
      exchanges[member] = std::move(*made);
    });
  }

  /// One thread for each member; returns when all have ended.
  static void run_threads(std::size_t members, const std::function<void(std::size_t)>& work) {
    std::vector<std::jthread> threads;
    for (std::size_t member = 0; member < members; ++member) threads.emplace_back([&work, member] { work(member); });
  }
  void run(const std::function<void(std::size_t)>& work) const { run_threads(exchanges.size(), work); }

  std::size_t size() const { return exchanges.size(); }

  ChannelTable channels;
  std::vector<std::unique_ptr<GroupExchange>> exchanges;
};

/// Byte `i` of what `sender` gives `receiver` in a round.
inline std::byte exchanged_byte(std::size_t sender, std::size_t receiver, std::size_t round, std::size_t i) {
  return static_cast<std::byte>(sender * 131 + receiver * 31 + round * 7 + i * 13 + (i >> 8));
}

/// The buffers of one member in a round where `bytes(sender, receiver)` go from one to another.
struct ExchangeBuffers {
  using Sizes = std::function<std::size_t(std::size_t, std::size_t)>;

  ExchangeBuffers(std::size_t members, std::size_t me, std::size_t round, const Sizes& bytes)
      : sent(members), received(members), to(members), from(members) {
    for (std::size_t other = 0; other < members; ++other) {
      if (other == me) continue;
      sent[other].resize(bytes(me, other));
      for (std::size_t i = 0; i < sent[other].size(); ++i) sent[other][i] = exchanged_byte(me, other, round, i);
      received[other].resize(bytes(other, me));
      to[other] = sent[other];
      from[other] = received[other];
    }
  }
  /// Nothing where every byte is as it should be.
  std::optional<std::string> wrong(std::size_t me, std::size_t round) const {
    for (std::size_t other = 0; other < received.size(); ++other) {
      for (std::size_t i = 0; i < received[other].size(); ++i) {
        if (received[other][i] == exchanged_byte(other, me, round, i)) continue;
        return fmt::format("byte {} of {} from member {} in round {}", i, received[other].size(), other, round);
      }
    }
    return std::nullopt;
  }

  std::vector<std::vector<std::byte>> sent, received;
  std::vector<ByteSpan> to;
  std::vector<MutableByteSpan> from;
};

/// Rounds of exchanges by all members; the buffers are spoilt as soon as they may be used again.
inline void expect_rounds(const ExchangeMesh& mesh, std::size_t rounds, const ExchangeBuffers::Sizes& bytes) {
  mesh.run([&](std::size_t me) {
    for (std::size_t round = 0; round < rounds; ++round) {
      ExchangeBuffers buffers(mesh.size(), me, round, bytes);
      const Status status = mesh.exchanges[me]->exchange(buffers.to, buffers.from);
      ASSERT_TRUE(status) << status.error().message;
      for (auto& sent : buffers.sent) std::ranges::fill(sent, std::byte{0xee});
      const auto wrong = buffers.wrong(me, round);
      ASSERT_FALSE(wrong) << "member " << me << ": " << *wrong;
    }
  });
}

}  // namespace butterfly
