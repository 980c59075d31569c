// Bytes to and from one peer over a connected socket: plain, or TLS 1.3 with certificates on both sides. What a
// channel, a listener and connect_tcp() stand on. Nothing here blocks. One thread sends and one receives at a time; a
// stream owns its socket.
#pragma once

#include <memory>

#include "butterfly/wire/channel/identity.h"
#include "butterfly/wire/channel/socket.h"
#include "butterfly/wire/channel/tcp.h"

namespace butterfly {

/// How often bytes were copied by a stream itself, in user space, on their way to the kernel or to TLS, and in how many
/// calls the kernel got them.
struct StreamCopies {
  std::uint64_t staged_bytes = 0;  // small pieces put together into one TLS record
  std::uint64_t sealed_bytes = 0;  // read by the cipher straight from the caller's buffers, or from the staged ones
  std::uint64_t opened_bytes = 0;  // copied out of TLS's record into the caller's buffers
  std::uint64_t writes = 0;        // calls that gave bytes to the kernel
  std::uint64_t kept_bytes = 0;    // borrowed from a sender and not taken by the connection at once
};

class ByteStream {
 public:
  explicit ByteStream(Descriptor fd) : fd_(std::move(fd)) {}
  virtual ~ByteStream() = default;

  int fd() const { return fd_.get(); }

  /// Goes on with what comes before the first byte; kMoved when it is complete.
  virtual IoResult handshake() = 0;

  /// As receive_some() and send_some(). A send() that answers kAgain is repeated with the same bytes. kAgain from
  /// receive() means that nothing is left inside: poll() sees whatever comes next.
  virtual IoResult receive(std::span<const MutableByteSpan> buffers) = 0;
  virtual IoResult send(std::span<const ByteSpan> buffers) = 0;

  /// Why a result was kFailed, as half a sentence.
  virtual std::string failure(const IoResult& result) const = 0;

  /// Whether a kFailed or kEnd before a client's hello is answered may be due to damage on the way: another attempt may
  /// get through. A refusal is not.
  virtual bool damaged(const IoResult& result) const = 0;

  /// Whom the handshake proved to be there; nobody on a plain stream.
  virtual std::optional<NodeIdentity> peer() const = 0;

  virtual StreamCopies copies() const = 0;

 private:
  const Descriptor fd_;
};

enum class StreamSide { kClient, kServer };

}  // namespace butterfly
