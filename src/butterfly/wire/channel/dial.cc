#include "butterfly/wire/channel/dial.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace butterfly {
namespace {

Result<Descriptor> connect_socket(const SocketAddress& address, const std::string& name, const Patience& patience) {
  BF_ASSIGN_OR_RETURN(Descriptor fd, make_socket(address.storage.ss_family));
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

/// Repeats `move`, which answers an IoResult, until it has moved something.
template <typename Move>
Result<std::size_t> move_some(const ByteStream& stream, const std::string& name, const Patience& patience, Move move) {
  for (;;) {
    const IoResult result = move();
    switch (result.state) {
      case IoResult::State::kMoved:
        return result.bytes;
      case IoResult::State::kEnd:
        return make_error(stream.damaged(result) ? ErrorCode::kBadData : ErrorCode::kUnavailable,
                          "{} closed the connection during the handshake", name);
      case IoResult::State::kFailed:
        return make_error(stream.damaged(result) ? ErrorCode::kBadData : ErrorCode::kUnavailable,
                          "the connection to {} broke during the handshake: {}", name, stream.failure(result));
      case IoResult::State::kAgain:
        BF_TRY(patience.wait(stream.fd(), result.event, name, "finish the handshake"));
        break;
    }
  }
}

}  // namespace

Result<std::unique_ptr<Patience>> Patience::create(Deadline deadline, const std::stop_token& stop) {
  BF_ASSIGN_OR_RETURN(Descriptor bell, make_bell());
  return std::unique_ptr<Patience>(new Patience(std::move(bell), deadline, stop));
}

Status Patience::wait(int fd, short event, const std::string& name, const char* what) const {
  std::array<pollfd, 2> fds{{{.fd = fd, .events = event, .revents = 0}, {bell_.get(), POLLIN, 0}}};
  BF_ASSIGN_OR_RETURN(const int ready, poll_until(fds, deadline_));
  if (ready == 0) return make_error(ErrorCode::kTimeout, "{} did not {} before the deadline", name, what);
  if (fds[1].revents != 0) return make_error(ErrorCode::kCancelled, "connecting to {} was given up", name);
  return {};
}

Result<Descriptor> dial(const std::string& address, const std::string& name, const Patience& patience) {
  BF_ASSIGN_OR_RETURN(const auto candidates, resolve(address, patience.deadline(), patience.stop()));
  return dial(candidates, name, patience);
}

Result<Descriptor> dial(std::span<const SocketAddress> candidates, const std::string& name, const Patience& patience) {
  Result<Descriptor> fd = make_error(ErrorCode::kUnavailable, "cannot connect to {}", name);
  for (const SocketAddress& candidate : candidates) {
    fd = connect_socket(candidate, name, patience);
    if (fd || fd.error().code == ErrorCode::kCancelled) break;
  }
  if (fd) disable_nagle(fd->get());
  return fd;
}

Status complete_handshake(ByteStream& stream, const std::string& name, const Patience& patience) {
  BF_TRY(move_some(stream, name, patience, [&] { return stream.handshake(); }));
  return {};
}

Status send_all(ByteStream& stream, ByteSpan bytes, const std::string& name, const Patience& patience) {
  while (!bytes.empty()) {
    BF_ASSIGN_OR_RETURN(const std::size_t sent,
                        move_some(stream, name, patience, [&] { return stream.send(std::span(&bytes, 1)); }));
    bytes = bytes.subspan(sent);
  }
  return {};
}

Status receive_all(ByteStream& stream, MutableByteSpan bytes, const std::string& name, const Patience& patience) {
  while (!bytes.empty()) {
    BF_ASSIGN_OR_RETURN(const std::size_t got,
                        move_some(stream, name, patience, [&] { return stream.receive(std::span(&bytes, 1)); }));
    bytes = bytes.subspan(got);
  }
  return {};
}

}  // namespace butterfly
