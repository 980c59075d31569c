#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>

#include "butterfly/base/log.h"
#include "butterfly/wire/channel/refusals.h"
#include "butterfly/wire/tcp/handshake.h"
#include "butterfly/wire/tcp/make_stream.h"
#include "butterfly/wire/tcp/tcp_channel.h"

namespace butterfly {
namespace {

class TcpListener final : public Listener {
 public:
  TcpListener(Descriptor socket, Descriptor bell, std::string address, const ListenOptions& options)
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
  using Verdict = ServerHandshake::Verdict;

  /// Waits for one round of events and handles them.
  Result<std::optional<Arrival>> progress(Deadline deadline) {
    std::vector<pollfd> fds;
    fds.push_back({.fd = bell_.get(), .events = POLLIN, .revents = 0});
    const bool listening = std::chrono::steady_clock::now() >= accept_after_;
    fds.push_back({.fd = listening ? socket_.get() : -1, .events = POLLIN, .revents = 0});
    Deadline wake = std::min(listening ? deadline : std::min(deadline, accept_after_), refusals_.next_flush());
    for (const ServerHandshake& handshake : handshakes_) {
      fds.push_back({.fd = handshake.fd(), .events = handshake.event(), .revents = 0});
      wake = std::min(wake, handshake.deadline());
    }
    BF_TRY(poll_until(fds, wake));
    if (fds[0].revents != 0) clear(bell_);
    refusals_.flush();

    std::optional<Arrival> arrival;
    std::size_t index = 2;
    for (auto it = handshakes_.begin(); it != handshakes_.end(); ++index) {
      const bool over = !arrival && (fds[index].revents != 0 ? step(*it, arrival) : expire(*it));
      it = over ? handshakes_.erase(it) : std::next(it);
    }
    if (fds[1].revents != 0) accept_waiting();
    return arrival;
  }

  /// Goes on with one client; whether it is done with.
  bool step(ServerHandshake& handshake, std::optional<Arrival>& arrival) {
    switch (handshake.advance()) {
      case Verdict::kWait:
        return expire(handshake);
      case Verdict::kRefuse:
      case Verdict::kGone:
        refusals_.refuse(handshake.peer(), handshake.reason());
        return true;
      case Verdict::kWelcome:
        arrival.emplace();
        arrival->introduction = handshake.take_introduction();
        arrival->node = handshake.node();
        arrival->channel = std::make_unique<TcpChannel>(handshake.take_stream(), handshake.peer(),
                                                        for_role(options_.channel, arrival->introduction.role));
        return true;
    }
    return true;
  }

  bool expire(const ServerHandshake& handshake) {
    if (std::chrono::steady_clock::now() < handshake.deadline()) return false;
    refusals_.refuse(handshake.peer(), handshake.unfinished());
    return true;
  }

  void accept_waiting() {
    SocketAddress peer;
    peer.length = sizeof(peer.storage);
    Descriptor fd(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length,
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
    if (handshakes_.size() >= static_cast<std::size_t>(options_.handshakes_max)) {
      refusals_.refuse(handshakes_.front().peer(), "gave way to newer clients before its handshake was complete");
      handshakes_.pop_front();
    }
    auto stream = make_stream(std::move(fd), options_.access, StreamSide::kServer);
    if (!stream) {
      refusals_.refuse(to_string(peer), stream.error().message);
      return;
    }
    handshakes_.emplace_back(std::move(*stream), to_string(peer),
                             std::chrono::steady_clock::now() + options_.handshake_timeout,
                             options_.access.credentials != nullptr);
  }

  const Descriptor socket_;
  const Descriptor bell_;
  const std::string address_;
  const ListenOptions options_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> interrupted_{false};
  std::list<ServerHandshake> handshakes_;  // oldest first
  Refusals refusals_{address_};
  Deadline accept_after_{};
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::create(const ListenOptions& options) {
  const Deadline deadline = after_ms(10'000);
  BF_ASSIGN_OR_RETURN(const auto resolved, resolve(options.address, deadline));
  BF_TRY(check_policy(options.address, resolved, options.access));
  BF_ASSIGN_OR_RETURN(Descriptor socket, listen_on(resolved.front(), options.address));
  BF_ASSIGN_OR_RETURN(Descriptor bell, make_bell());
  BF_ASSIGN_OR_RETURN(const SocketAddress bound, bound_address(socket));
  return std::make_unique<TcpListener>(std::move(socket), std::move(bell), to_string(bound), options);
}

}  // namespace butterfly
