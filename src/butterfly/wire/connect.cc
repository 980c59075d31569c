#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>

#include "butterfly/wire/socket.h"
#include "butterfly/wire/tcp.h"
#include "butterfly/wire/tcp_channel.h"

namespace butterfly {
namespace {

/// How long an attempt may take: until its deadline, or until it is not wanted any more.
class Patience {
 public:
  static Result<std::unique_ptr<Patience>> create(Deadline deadline, const std::stop_token& stop) {
    BF_ASSIGN_OR_RETURN(Fd bell, make_bell());
    return std::unique_ptr<Patience>(new Patience(std::move(bell), deadline, stop));
  }

  /// Errors: kTimeout, kCancelled, kIo.
  Status wait(int fd, short event, const std::string& name, const char* what) const {
    std::array<pollfd, 2> fds{{{.fd = fd, .events = event, .revents = 0}, {bell_.get(), POLLIN, 0}}};
    BF_ASSIGN_OR_RETURN(const int ready, poll_until(fds, deadline_));
    if (ready == 0) return make_error(ErrorCode::kTimeout, "{} did not {} before the deadline", name, what);
    if (fds[1].revents != 0) return make_error(ErrorCode::kCancelled, "connecting to {} was given up", name);
    return {};
  }

 private:
  Patience(Fd bell, Deadline deadline, const std::stop_token& stop)
      : bell_(std::move(bell)), deadline_(deadline), on_stop_(stop, [this] { ring(bell_); }) {}

  const Fd bell_;
  const Deadline deadline_;
  const std::stop_callback<std::function<void()>> on_stop_;
};

Result<Fd> connect_socket(const SocketAddress& address, const std::string& name, const Patience& patience) {
  BF_ASSIGN_OR_RETURN(Fd fd, make_socket(address.storage.ss_family));
  if (::connect(fd.get(), address.get(), address.length) == 0) return fd;
  int error = errno;
  if (error == EINPROGRESS || error == EINTR) {
    BF_TRY(patience.wait(fd.get(), POLLOUT, name, "answer"));
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return fd;
  }
  return make_error(ErrorCode::kUnavailable, "cannot connect to {}: {}", name, system_message(error));
}

/// Moves all bytes; `move` is receive_some or send_some.
template <typename Span, typename Move>
Status move_all(int fd, Span bytes, short event, const std::string& name, const Patience& patience, Move move) {
  while (!bytes.empty()) {
    const IoResult result = move(fd, std::span<const Span>(&bytes, 1));
    switch (result.state) {
      case IoResult::State::kMoved:
        bytes = bytes.subspan(result.bytes);
        break;
      case IoResult::State::kEnd:
        return make_error(ErrorCode::kUnavailable, "{} closed the connection during the handshake", name);
      case IoResult::State::kFailed:
        return make_error(ErrorCode::kUnavailable, "the connection to {} broke during the handshake: {}", name,
                          system_message(result.error));
      case IoResult::State::kAgain:
        BF_TRY(patience.wait(fd, event, name, "finish the handshake"));
        break;
    }
  }
  return {};
}

Status shake_hands(int fd, const Introduction& introduction, const std::string& name, const Patience& patience) {
  const HelloBytes hello = encode_hello(introduction);
  BF_TRY(move_all(fd, ByteSpan(hello), POLLOUT, name, patience, send_some));
  HelloReplyBytes reply{};
  BF_TRY(move_all(fd, MutableByteSpan(reply), POLLIN, name, patience, receive_some));
  auto version = decode_hello_reply(reply);
  if (!version) return make_error(ErrorCode::kProtocol, "{}: {}", name, version.error().message);
  if (*version != kProtocolVersion) {
    return make_error(ErrorCode::kProtocol, "worker {} speaks protocol {}, this program {}", name, *version,
                      kProtocolVersion);
  }
  return {};
}

}  // namespace

Result<ChannelPtr> connect_tcp(const std::string& address, const ConnectOptions& options, Deadline deadline) {
  if (options.introduction.label.size() > kLabelBytesMax) {
    return make_error(ErrorCode::kInvalidArgument, "a channel label of {} bytes, the limit is {}",
                      options.introduction.label.size(), kLabelBytesMax);
  }
  const std::string& name = options.peer_name.empty() ? address : options.peer_name;
  BF_TRY(check_policy(address, options.access, deadline));
  BF_ASSIGN_OR_RETURN(const auto candidates, resolve(address, deadline));
  BF_ASSIGN_OR_RETURN(const auto patience, Patience::create(deadline, options.stop));
  Result<Fd> fd = make_error(ErrorCode::kUnavailable, "cannot connect to {}", name);
  for (const SocketAddress& candidate : candidates) {
    fd = connect_socket(candidate, name, *patience);
    if (fd || fd.error().code == ErrorCode::kCancelled) break;
  }
  if (!fd) return tl::unexpected(std::move(fd).error());
  disable_nagle(fd->get());
  BF_TRY(shake_hands(fd->get(), options.introduction, name, *patience));
  return std::make_unique<TcpChannel>(std::move(*fd), name, options.channel);
}

}  // namespace butterfly
