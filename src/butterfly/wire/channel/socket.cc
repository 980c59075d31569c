#include "butterfly/wire/channel/socket.h"

#include <netinet/tcp.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "butterfly/base/check.h"

namespace butterfly {
namespace {

constexpr std::size_t kPieces = 3;  // header, meta, payload

template <typename Span>
msghdr gather(std::span<const Span> buffers, std::array<iovec, kPieces>& pieces) {
  BF_CHECK(buffers.size() <= kPieces);
  msghdr header{};
  header.msg_iov = pieces.data();
  std::size_t room = kIoBytesMax;
  for (const Span& buffer : buffers) {
    const std::size_t bytes = std::min(buffer.size(), room);
    if (bytes == 0) continue;
    // iovec has one type for both directions; sendmsg only reads.
    pieces[header.msg_iovlen++] = {.iov_base = const_cast<std::byte*>(buffer.data()), .iov_len = bytes};
    room -= bytes;
  }
  return header;
}

IoResult classify(ssize_t moved, short event) {
  if (moved > 0) return {.state = IoResult::State::kMoved, .bytes = static_cast<std::size_t>(moved)};
  if (moved == 0) return {.state = IoResult::State::kEnd};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return {.state = IoResult::State::kAgain, .event = event};
  }
  return {.state = IoResult::State::kFailed, .error = errno};
}

}  // namespace

IoResult receive_some(int fd, std::span<const MutableByteSpan> buffers) {
  std::array<iovec, kPieces> pieces;
  msghdr header = gather(buffers, pieces);
  return classify(recvmsg(fd, &header, MSG_DONTWAIT), POLLIN);
}

IoResult send_some(int fd, std::span<const ByteSpan> buffers) {
  std::array<iovec, kPieces> pieces;
  msghdr header = gather(buffers, pieces);
  return classify(sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL), POLLOUT);
}

Result<int> poll_until(std::span<pollfd> fds, Deadline deadline) {
  constexpr auto kLongest = std::chrono::hours(1);  // fits poll's int; longer waits come back here
  for (;;) {
    const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
    const auto slice = std::chrono::ceil<std::chrono::milliseconds>(std::min<Deadline::duration>(left, kLongest));
    const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(slice.count()));
    if (ready > 0) return ready;
    if (ready < 0 && errno != EINTR) return make_error(ErrorCode::kIo, "poll failed: {}", system_message(errno));
    if (ready == 0 && left <= kLongest) return 0;
  }
}

Result<Descriptor> make_socket(int family) {
  Descriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return make_error(ErrorCode::kIo, "cannot open a socket: {}", system_message(errno));
  return fd;
}

void disable_nagle(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Result<Descriptor> listen_on(const SocketAddress& address, const std::string& name) {
  BF_ASSIGN_OR_RETURN(Descriptor fd, make_socket(address.storage.ss_family));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) {
      return make_error(ErrorCode::kUnavailable, "cannot listen on {}: another program uses that port", name);
    }
    const ErrorCode code = errno == EADDRNOTAVAIL ? ErrorCode::kNotFound : ErrorCode::kIo;
    return make_error(code, "cannot listen on {}: {}", name, system_message(errno));
  }
  if (::listen(fd.get(), 128) != 0) {
    if (errno == EADDRINUSE) {
      return make_error(ErrorCode::kUnavailable, "cannot listen on {}: another program uses that port", name);
    }
    return make_error(ErrorCode::kIo, "cannot listen on {}: {}", name, system_message(errno));
  }
  return fd;
}

Result<SocketAddress> bound_address(const Descriptor& fd) {
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return make_error(ErrorCode::kIo, "cannot learn the port of a socket: {}", system_message(errno));
  }
  return bound;
}

Result<Descriptor> make_bell() {
  Descriptor fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) return make_error(ErrorCode::kIo, "cannot open an eventfd: {}", system_message(errno));
  return fd;
}

void ring(const Descriptor& bell) {
  const std::uint64_t one = 1;
  // Fails only when it already rings 2^64 - 2 times.
  [[maybe_unused]] const ssize_t written = ::write(bell.get(), &one, sizeof(one));
}

void clear(const Descriptor& bell) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(bell.get(), &count, sizeof(count));
}

std::string system_message(int error) {
  return std::generic_category().message(error);
}

}  // namespace butterfly
