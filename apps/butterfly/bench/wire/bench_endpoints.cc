#include "bench/wire/bench_endpoints.h"

#include <sys/socket.h>

#include <thread>

#include "butterfly/wire/channel/spin.h"
#include "butterfly/wire/enrolment/authority.h"
#include "butterfly/wire/enrolment/credentials.h"
#include "butterfly/wire/tcp/tcp_channel.h"

namespace butterfly::app {
namespace {

constexpr std::int64_t kTimeoutMs = 30'000;

/// Sockets as everybody writes them: send() and recv() until all bytes are through.
class RawEnd final : public End {
 public:
  RawEnd(Descriptor fd, Waiting waiting, std::size_t bytes_max)
      : fd_(std::move(fd)), waiting_(waiting), buffer_(bytes_max) {}

  Status send(std::size_t bytes) override {
    return move_all(bytes, POLLOUT, [&](std::byte* data, std::size_t count) {
      return ::send(fd_.get(), data, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    });
  }
  Status receive(std::size_t bytes) override {
    return move_all(bytes, POLLIN,
                    [&](std::byte* data, std::size_t count) { return ::recv(fd_.get(), data, count, MSG_DONTWAIT); });
  }
  StreamCopies copies() const override { return {}; }
  ChannelStats stats() const override { return {}; }

 private:
  template <typename Move>
  Status move_all(std::size_t bytes, short event, Move move) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t moved = move(buffer_.data() + done, bytes - done);
      if (moved > 0) {
        done += static_cast<std::size_t>(moved);
      } else if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
        // Only a receiver spins; a sender whose buffer is full has nothing to gain, here as in the channels.
        if (waiting_ == Waiting::kSpin && event == POLLIN) {
          relax_cpu();
          continue;
        }
        pollfd wait{.fd = fd_.get(), .events = event, .revents = 0};
        BF_TRY(poll_until(std::span(&wait, 1), after_ms(kTimeoutMs)));
      } else {
        return make_error(ErrorCode::kUnavailable, "a raw socket closed");
      }
    }
    return {};
  }

  const Descriptor fd_;
  const Waiting waiting_;
  std::vector<std::byte> buffer_;
};

class ChannelEnd final : public End {
 public:
  ChannelEnd(ChannelPtr channel, Payload outgoing, Payload incoming)
      : channel_(std::move(channel)), outgoing_(std::move(outgoing)), incoming_(std::move(incoming)) {}

  Status send(std::size_t bytes) override {
    Message message;
    message.payload = {.owner = outgoing_.owner, .bytes = outgoing_.bytes.first(bytes)};
    return channel_->send(std::move(message), after_ms(kTimeoutMs));
  }
  Status receive(std::size_t bytes) override {
    const auto same_buffer = [this](std::uint64_t size) -> Result<Payload> {
      return Payload{.owner = incoming_.owner, .bytes = incoming_.bytes.first(size)};
    };
    BF_ASSIGN_OR_RETURN(const Message message, channel_->receive(same_buffer, after_ms(kTimeoutMs)));
    if (message.payload.bytes.size() != bytes) {
      return make_error(ErrorCode::kProtocol, "{} bytes came, expected {}", message.payload.bytes.size(), bytes);
    }
    return {};
  }
  StreamCopies copies() const override { return dynamic_cast<const TcpChannel&>(*channel_).copies(); }
  ChannelStats stats() const override { return channel_->stats(); }

 private:
  const ChannelPtr channel_;
  const Payload outgoing_, incoming_;
};

Result<Endpoints> make_raw_endpoints(Waiting waiting, std::size_t bytes_max) {
  BF_ASSIGN_OR_RETURN(const auto addresses, resolve("127.0.0.1:0", after_ms(1000)));
  BF_ASSIGN_OR_RETURN(const Descriptor listening, listen_on(addresses.front(), "127.0.0.1:0"));
  BF_ASSIGN_OR_RETURN(const SocketAddress bound, bound_address(listening));
  Descriptor near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(near.get(), bound.get(), bound.length) != 0) {
    return make_error(ErrorCode::kUnavailable, "cannot connect to a socket of our own: {}", system_message(errno));
  }
  Descriptor far(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!far.valid()) return make_error(ErrorCode::kUnavailable, "cannot accept: {}", system_message(errno));
  disable_nagle(near.get());
  disable_nagle(far.get());
  return Endpoints{.near = std::make_unique<RawEnd>(std::move(near), waiting, bytes_max),
                   .far = std::make_unique<RawEnd>(std::move(far), waiting, bytes_max)};
}

Result<NodeAccess> make_access(const std::string& folder) {
  NodeAccess access;
  if (!has_credentials(folder)) BF_TRY(Authority::create(folder, {}));
  BF_ASSIGN_OR_RETURN(access.credentials, Credentials::load(folder));
  return access;
}

TcpOptions channel_options(Waiting waiting) {
  TcpOptions options;
  if (waiting == Waiting::kSpin) options.spin = std::chrono::seconds(1);
  if (waiting == Waiting::kBlock) options.spin = std::chrono::microseconds(0);
  return options;
}

Result<std::unique_ptr<End>> channel_end(ChannelPtr channel, std::size_t bytes_max) {
  BF_ASSIGN_OR_RETURN(Payload outgoing, allocate_payload(bytes_max));
  BF_ASSIGN_OR_RETURN(Payload incoming, allocate_payload(bytes_max));
  std::ranges::fill(outgoing.bytes, std::byte{1});  // memory is really there before it is timed
  std::ranges::fill(incoming.bytes, std::byte{2});
  return std::make_unique<ChannelEnd>(std::move(channel), std::move(outgoing), std::move(incoming));
}

}  // namespace

std::string_view to_string(Engine engine) {
  return engine == Engine::kRaw ? "raw" : engine == Engine::kPlain ? "plain" : "tls";
}

std::string_view to_string(Waiting waiting) {
  return waiting == Waiting::kSpin ? "spin" : waiting == Waiting::kBlock ? "block" : "default";
}

Result<Endpoints> make_endpoints(Engine engine, Waiting waiting, std::size_t bytes_max, const std::string& folder) {
  if (engine == Engine::kRaw) return make_raw_endpoints(waiting, bytes_max);
  ListenOptions listening;
  ConnectOptions connecting;
  listening.channel = connecting.channel = channel_options(waiting);
  if (engine == Engine::kTls) {
    BF_ASSIGN_OR_RETURN(listening.access, make_access(folder));
    connecting.access = listening.access;
  }
  BF_ASSIGN_OR_RETURN(const auto listener, Listener::create(listening));
  Result<ChannelPtr> client = make_error(ErrorCode::kUnavailable, "not connected yet");
  std::thread dialling([&] { client = connect_tcp(listener->address(), connecting, after_ms(kTimeoutMs)); });
  auto arrival = listener->accept(after_ms(kTimeoutMs));
  dialling.join();
  if (!arrival) return tl::unexpected(arrival.error());
  if (!client) return tl::unexpected(client.error());
  Endpoints endpoints;
  BF_ASSIGN_OR_RETURN(endpoints.near, channel_end(std::move(*client), bytes_max));
  BF_ASSIGN_OR_RETURN(endpoints.far, channel_end(std::move(arrival->channel), bytes_max));
  return endpoints;
}

}  // namespace butterfly::app
