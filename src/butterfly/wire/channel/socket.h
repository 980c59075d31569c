// Non-blocking sockets in the few forms the wire needs.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <span>

#include "butterfly/base/descriptor.h"
#include "butterfly/wire/channel/ack_watch.h"
#include "butterfly/wire/channel/address.h"

namespace butterfly {

/// Bytes moved, or why none: kAgain (poll() for `event` and try again), kEnd (the peer finished), kFailed (`error` is
/// an errno, or 0 where a ByteStream knows better).
struct IoResult {
  enum class State { kMoved, kAgain, kEnd, kFailed };
  State state = State::kMoved;
  std::size_t bytes = 0;
  int error = 0;
  short event = 0;
};

/// Never block; at most kIoBytesMax bytes in one call.
IoResult receive_some(int fd, std::span<const MutableByteSpan> buffers);
IoResult send_some(int fd, std::span<const ByteSpan> buffers);

#ifdef BUTTERFLY_TINY
inline constexpr std::size_t kIoBytesMax = 61;  // every message arrives in pieces
#else
inline constexpr std::size_t kIoBytesMax = std::size_t{1} << 30;
#endif

/// poll() until an event or the deadline, through signals. Errors: kIo. Zero: the deadline passed.
Result<int> poll_until(std::span<pollfd> fds, Deadline deadline);

/// A non-blocking, close-on-exec stream socket.
Result<Descriptor> make_socket(int family);
void disable_nagle(int fd);

/// Nothing awaited where the socket knows nothing.
Acknowledgements acknowledgements(int fd);

/// How fast a connection is, as the kernel measured it.
struct DeliveryRate {
  double bytes_per_s = 0;                 // acknowledged while more was waiting; 0 where nothing ever waited
  std::uint64_t receiver_limited_us = 0;  // so far: what waited, waited for the peer to read, not for the link
};
DeliveryRate delivery_rate(int fd);

/// Errors: kUnavailable (another program has the port), kIo; `name` is what they call the address.
Result<Descriptor> listen_on(const SocketAddress& address, const std::string& name);
Result<SocketAddress> bound_address(const Descriptor& fd);

/// An eventfd: anyone may ring it, a poll() on it wakes until it is cleared.
Result<Descriptor> make_bell();
void ring(const Descriptor& bell);
void clear(const Descriptor& bell);

/// The system's sentence for an errno.
std::string system_message(int error);

}  // namespace butterfly
