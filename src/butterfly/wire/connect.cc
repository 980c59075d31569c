#include <sys/socket.h>

#include <cerrno>

#include "butterfly/wire/socket.h"
#include "butterfly/wire/tcp.h"
#include "butterfly/wire/tcp_channel.h"

namespace butterfly {
namespace {

Result<Fd> connect_socket(const SocketAddress& address, const std::string& name, Deadline deadline) {
  BF_ASSIGN_OR_RETURN(Fd fd, make_socket(address.storage.ss_family));
  if (::connect(fd.get(), address.get(), address.length) == 0) return fd;
  int error = errno;
  if (error == EINPROGRESS || error == EINTR) {
    pollfd wait{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    BF_ASSIGN_OR_RETURN(const int ready, poll_until(std::span(&wait, 1), deadline));
    if (ready == 0) return make_error(ErrorCode::kTimeout, "{} did not answer before the deadline", name);
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return fd;
  }
  return make_error(ErrorCode::kUnavailable, "cannot connect to {}: {}", name, system_message(error));
}

/// Moves all bytes before the deadline; `move` is receive_some or send_some.
template <typename Span, typename Move>
Status move_all(int fd, Span bytes, short event, const std::string& name, Deadline deadline, Move move) {
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
      case IoResult::State::kAgain: {
        pollfd wait{.fd = fd, .events = event, .revents = 0};
        BF_ASSIGN_OR_RETURN(const int ready, poll_until(std::span(&wait, 1), deadline));
        if (ready == 0) return make_error(ErrorCode::kTimeout, "{} did not finish the handshake in time", name);
        break;
      }
    }
  }
  return {};
}

Status shake_hands(int fd, const Introduction& introduction, const std::string& name, Deadline deadline) {
  const HelloBytes hello = encode_hello(introduction);
  BF_TRY(move_all(fd, ByteSpan(hello), POLLOUT, name, deadline, send_some));
  HelloReplyBytes reply{};
  BF_TRY(move_all(fd, MutableByteSpan(reply), POLLIN, name, deadline, receive_some));
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
  BF_ASSIGN_OR_RETURN(const auto candidates, resolve(address, deadline));
  Result<Fd> fd = make_error(ErrorCode::kUnavailable, "cannot connect to {}", name);
  for (const SocketAddress& candidate : candidates) {
    fd = connect_socket(candidate, name, deadline);
    if (fd) break;
  }
  if (!fd) return tl::unexpected(std::move(fd).error());
  disable_nagle(fd->get());
  BF_TRY(shake_hands(fd->get(), options.introduction, name, deadline));
  return std::make_unique<TcpChannel>(std::move(*fd), name, options.channel);
}

}  // namespace butterfly
