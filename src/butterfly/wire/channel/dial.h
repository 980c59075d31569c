// The client's side of a connection, step by step: what takes time ends at a deadline or when it is not wanted any
// more.
#pragma once

#include <functional>
#include <stop_token>

#include "butterfly/wire/channel/byte_stream.h"

namespace butterfly {

/// How long an attempt may take: until its deadline, or until it is not wanted any more.
class Patience {
 public:
  /// Errors: kIo.
  static Result<std::unique_ptr<Patience>> create(Deadline deadline, const std::stop_token& stop);

  /// Until fd has the event; `what` completes "NAME did not ... before the deadline". Errors: kTimeout, kCancelled,
  /// kIo.
  Status wait(int fd, short event, const std::string& name, const char* what) const;

  Deadline deadline() const { return deadline_; }
  const std::stop_token& stop() const { return stop_; }

 private:
  Patience(Descriptor bell, Deadline deadline, const std::stop_token& stop)
      : bell_(std::move(bell)), deadline_(deadline), stop_(stop), on_stop_(stop, [this] { ring(bell_); }) {}

  const Descriptor bell_;
  const Deadline deadline_;
  const std::stop_token stop_;
  const std::stop_callback<std::function<void()>> on_stop_;
};

/// A connected socket. Errors: kInvalidArgument (form), kNotFound, kUnavailable (refused), those of Patience.
Result<Descriptor> dial(const std::string& address, const std::string& name, const Patience& patience);

/// The same to the first of these that answers.
Result<Descriptor> dial(std::span<const SocketAddress> candidates, const std::string& name, const Patience& patience);

/// Errors of these: kUnavailable, kBadData (damaged on the way), those of Patience.
Status complete_handshake(ByteStream& stream, const std::string& name, const Patience& patience);
Status send_all(ByteStream& stream, ByteSpan bytes, const std::string& name, const Patience& patience);
Status receive_all(ByteStream& stream, MutableByteSpan bytes, const std::string& name, const Patience& patience);

}  // namespace butterfly
