// Peers for tests: one that knows nothing of the protocol, and one that accepts as a worker does.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "butterfly/wire/channel/socket.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// A client that knows nothing of the protocol.
class RawClient {
 public:
  explicit RawClient(const std::string& address) {
    const SocketAddress target = resolve(address, after_ms(1000)).value().front();
    fd_ = Descriptor(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), target.get(), target.length), 0);
  }
  void write(ByteSpan bytes) const {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  /// All bytes until the server closes; nothing when it has not closed within five seconds.
  std::optional<std::vector<std::byte>> read_to_end() const {
    std::vector<std::byte> all;
    for (;;) {
      pollfd wait{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      if (poll_until(std::span(&wait, 1), after_ms(5000)).value() == 0) return std::nullopt;
      std::array<std::byte, 256> buffer;
      const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return all;
      all.insert(all.end(), buffer.begin(), buffer.begin() + got);
    }
  }
  int fd() const { return fd_.get(); }
  void read_exactly(MutableByteSpan bytes) const {
    EXPECT_EQ(::recv(fd_.get(), bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
  }

 private:
  Descriptor fd_;
};

/// Runs accept() until it is told to stop, as a worker does, and keeps what arrives.
class AcceptLoop {
 public:
  explicit AcceptLoop(const ListenOptions& options = {})
      : listener_(Listener::create(options).value()), thread_([this] {
          while (auto arrival = listener_->accept(after_ms(60'000))) {
            std::lock_guard lock(mutex_);
            arrivals_.push_back(std::move(*arrival));
            ++count_;
          }
        }) {}
  ~AcceptLoop() {
    listener_->close();
    thread_.join();
  }
  std::string address() const { return listener_->address(); }
  Arrival wait_for_arrival() {
    for (int i = 0; i < 5000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (!arrivals_.empty()) {
          Arrival arrival = std::move(arrivals_.front());
          arrivals_.erase(arrivals_.begin());
          return arrival;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "nobody arrived";
    return {};
  }
  int count() const { return count_; }

 private:
  std::unique_ptr<Listener> listener_;
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::atomic<int> count_{0};
  std::thread thread_;
};

}  // namespace butterfly
