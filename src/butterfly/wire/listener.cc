#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>

#include "butterfly/base/log.h"
#include "butterfly/wire/socket.h"
#include "butterfly/wire/tcp.h"
#include "butterfly/wire/tcp_channel.h"

namespace butterfly {
namespace {

/// A connection that has not introduced itself yet, or that is being turned away.
struct Handshake {
  Fd fd;
  SocketAddress peer;
  Deadline deadline;
  HelloBytes hello{};
  std::size_t filled = 0;
  bool leaving = false;  // answered with our version; waits for the client to read it and close
};

enum class Verdict { kWait, kWelcome, kDrop };

bool send_reply(const Handshake& handshake) {
  const HelloReplyBytes reply = encode_hello_reply();
  const ByteSpan bytes(reply);
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    // A fresh socket's buffer takes 16 bytes at once; a client that arranged otherwise is dropped.
    const ByteSpan rest = bytes.subspan(sent);
    const IoResult result = send_some(handshake.fd.get(), std::span(&rest, 1));
    if (result.state != IoResult::State::kMoved) return false;
    sent += result.bytes;
  }
  return true;
}

/// Closing with unread bytes would reset the connection and might destroy the answer on its way: read to the end.
Verdict drain(const Handshake& handshake) {
  std::array<std::byte, 512> rest;
  const MutableByteSpan buffer(rest);
  const IoResult result = receive_some(handshake.fd.get(), std::span(&buffer, 1));
  return result.state == IoResult::State::kMoved || result.state == IoResult::State::kAgain ? Verdict::kWait
                                                                                            : Verdict::kDrop;
}

/// Reads what has arrived and decides.
Verdict advance(Handshake& handshake, Introduction& introduction) {
  if (handshake.leaving) return drain(handshake);
  const MutableByteSpan buffer = MutableByteSpan(handshake.hello).subspan(handshake.filled);
  const IoResult result = receive_some(handshake.fd.get(), std::span(&buffer, 1));
  if (result.state == IoResult::State::kAgain) return Verdict::kWait;
  if (result.state != IoResult::State::kMoved) return Verdict::kDrop;
  handshake.filled += result.bytes;
  if (handshake.filled < kHelloPrefixBytes) return Verdict::kWait;
  const auto version = decode_hello_version(std::span(handshake.hello).first<kHelloPrefixBytes>());
  if (!version) return Verdict::kDrop;
  if (*version != kProtocolVersion) {
    log().warn("{} speaks protocol {}, this program {}", to_string(handshake.peer), *version, kProtocolVersion);
    if (!send_reply(handshake)) return Verdict::kDrop;
    ::shutdown(handshake.fd.get(), SHUT_WR);
    handshake.leaving = true;
    return Verdict::kWait;
  }
  if (handshake.filled < kHelloBytes) return Verdict::kWait;
  auto decoded = decode_hello(handshake.hello);
  if (!decoded || !send_reply(handshake)) return Verdict::kDrop;
  introduction = std::move(*decoded);
  return Verdict::kWelcome;
}

class TcpListener final : public Listener {
 public:
  TcpListener(Fd socket, Fd bell, std::string address, const ListenOptions& options)
      : socket_(std::move(socket)), bell_(std::move(bell)), address_(std::move(address)), options_(options) {}

  std::string address() const override { return address_; }

  Result<Arrival> accept(Deadline deadline) override {
    for (;;) {
      if (closed_) return make_error(ErrorCode::kCancelled, "{} is closed", address_);
      if (interrupted_.exchange(false)) return make_error(ErrorCode::kCancelled, "{} was interrupted", address_);
      BF_ASSIGN_OR_RETURN(auto arrival, progress(deadline));
      if (arrival) return std::move(*arrival);
      if (std::chrono::steady_clock::now() >= deadline) {
        return make_error(ErrorCode::kTimeout, "nobody connected to {} before the deadline", address_);
      }
    }
  }

  void interrupt() override {
    interrupted_ = true;
    ring(bell_);
  }

  void close() override {
    closed_ = true;
    ring(bell_);
  }

 private:
  /// Waits for one round of events and handles them.
  Result<std::optional<Arrival>> progress(Deadline deadline) {
    std::vector<pollfd> fds;
    fds.push_back({.fd = bell_.get(), .events = POLLIN, .revents = 0});
    const bool listening = std::chrono::steady_clock::now() >= accept_after_;
    fds.push_back({.fd = listening ? socket_.get() : -1, .events = POLLIN, .revents = 0});
    Deadline wake = listening ? deadline : std::min(deadline, accept_after_);
    for (const Handshake& handshake : handshakes_) {
      fds.push_back({.fd = handshake.fd.get(), .events = POLLIN, .revents = 0});
      wake = std::min(wake, handshake.deadline);
    }
    BF_TRY(poll_until(fds, wake));
    if (fds[0].revents != 0) clear(bell_);

    std::optional<Arrival> arrival;
    std::size_t index = 2;
    for (auto it = handshakes_.begin(); it != handshakes_.end(); ++index) {
      const auto verdict = fds[index].revents == 0 || arrival ? Verdict::kWait : step(*it, arrival);
      const bool late = !arrival && std::chrono::steady_clock::now() >= it->deadline;
      it = verdict != Verdict::kWait || late ? handshakes_.erase(it) : std::next(it);
    }
    if (fds[1].revents != 0) accept_waiting();
    return arrival;
  }

  Verdict step(Handshake& handshake, std::optional<Arrival>& arrival) {
    Introduction introduction;
    const Verdict verdict = advance(handshake, introduction);
    if (verdict == Verdict::kWelcome) {
      arrival = Arrival{
          .channel = std::make_unique<TcpChannel>(std::move(handshake.fd), to_string(handshake.peer), options_.channel),
          .introduction = std::move(introduction)};
    }
    return verdict;
  }

  void accept_waiting() {
    SocketAddress peer;
    peer.length = sizeof(peer.storage);
    Fd fd(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length,
                    SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Out of descriptors: the listening socket stays readable, so rest a little instead of running in circles.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log().warn("{} cannot accept a connection: {}", address_, system_message(errno));
        if (!handshakes_.empty()) handshakes_.pop_front();
        accept_after_ = after_ms(50);
      }
      return;
    }
    disable_nagle(fd.get());
    if (handshakes_.size() >= static_cast<std::size_t>(options_.handshakes_max)) handshakes_.pop_front();
    Handshake handshake;
    handshake.fd = std::move(fd);
    handshake.peer = peer;
    handshake.deadline = std::chrono::steady_clock::now() + options_.handshake_timeout;
    handshakes_.push_back(std::move(handshake));
  }

  const Fd socket_;
  const Fd bell_;
  const std::string address_;
  const ListenOptions options_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> interrupted_{false};
  std::list<Handshake> handshakes_;  // oldest first
  Deadline accept_after_{};
};

Result<Fd> bind_and_listen(const SocketAddress& address, const std::string& name) {
  BF_ASSIGN_OR_RETURN(Fd fd, make_socket(address.storage.ss_family));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) {
      return make_error(ErrorCode::kUnavailable, "cannot listen on {}: another program uses that port", name);
    }
    return make_error(ErrorCode::kIo, "cannot listen on {}: {}", name, system_message(errno));
  }
  if (::listen(fd.get(), 128) != 0) {
    if (errno == EADDRINUSE) {
      return make_error(ErrorCode::kUnavailable, "cannot listen on {}: another program uses that port", name);
    }
    return make_error(ErrorCode::kIo, "cannot listen on {}: {}", name, system_message(errno));
  }
  return fd;
}

}  // namespace

Status check_policy(const std::string& address, const NodeAccess& access, Deadline deadline) {
  if (access.policy == AddressPolicy::kAnyAddress) return {};
  BF_ASSIGN_OR_RETURN(const bool loopback, is_loopback(address, deadline));
  if (!loopback) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is not a loopback address: until nodes authenticate each other, workers listen on loopback "
                      "only (127.0.0.1 or [::1])",
                      address);
  }
  return {};
}

Result<std::unique_ptr<Listener>> Listener::create(const ListenOptions& options) {
  const Deadline deadline = after_ms(10'000);
  BF_TRY(check_policy(options.address, options.access, deadline));
  BF_ASSIGN_OR_RETURN(const auto resolved, resolve(options.address, deadline));
  // The name may have changed its meaning since the check: what is bound is what counts.
  if (options.access.policy == AddressPolicy::kLoopbackOnly && !is_loopback(resolved.front())) {
    return make_error(ErrorCode::kInvalidArgument, "{} is not a loopback address", to_string(resolved.front()));
  }
  BF_ASSIGN_OR_RETURN(Fd socket, bind_and_listen(resolved.front(), options.address));
  BF_ASSIGN_OR_RETURN(Fd bell, make_bell());
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return make_error(ErrorCode::kIo, "cannot learn the port of {}: {}", options.address, system_message(errno));
  }
  return std::make_unique<TcpListener>(std::move(socket), std::move(bell), to_string(bound), options);
}

}  // namespace butterfly
